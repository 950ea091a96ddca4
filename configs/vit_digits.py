"""A small Vision Transformer on the 1,797 digits of 8 x 8 pixels that come with scikit-learn.

    python train.py --config=configs/vit_digits.py --workdir=runs/vit_digits
    python eval.py --workdir=runs/vit_digits

Hardware: any CPU; needs the extra tfm[digits]. Expected: 98 % of the test images within a minute of CPU time,
see docs/results.md.

Deviations from the paper, all for size: 3 layers of 64 features over 4 patches, no dropout; images are moved
by up to a pixel in training.
"""

from tfm.config import to_config_dict
from tfm.data.config import ImagesConfig
from tfm.models.vit import ViTConfig
from tfm.tasks.classification import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW


def get_config():
    return to_config_dict(
        Config(
            model=ViTConfig(
                image_size=8,
                channels=1,
                patch_size=4,
                classes=10,
                encoder_layers=3,
                d_model=64,
                d_ff=128,
                heads=4,
                dropout=0.0,
            ),
            data=ImagesConfig(kind="digits", batch_size=64, max_shift=1),
            training=TrainingConfig(
                steps=1000,
                schedule="cosine_decay",
                warmup_steps=100,
                peak_learning_rate=2e-3,
                optimizer=AdamW(weight_decay=0.05),
                log_every=100,
                eval_every=200,
                checkpoint_every=200,
                keep=3,
            ),
            label_smoothing=0.1,
        )
    )
