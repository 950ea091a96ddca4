"""A small Vision Transformer on MNIST: 70,000 handwritten digits of 28 x 28 pixels.

    python train.py --config=configs/vit_mnist.py --workdir=runs/vit_mnist
    python eval.py --workdir=runs/vit_mnist

Hardware: one GPU, or a CPU for an hour or more. Time and accuracy: not measured.
TFDS downloads the images (11 MB) on first use. The last 5,000 of the 60,000 training images validate.
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
                image_size=28,
                channels=1,
                patch_size=7,
                classes=10,
                encoder_layers=6,
                d_model=128,
                d_ff=256,
                heads=4,
            ),
            data=ImagesConfig(
                kind="tfds",
                name="mnist",
                train="train[:55000]",
                validation="train[55000:]",
                batch_size=256,
                max_shift=2,
            ),
            training=TrainingConfig(
                steps=6000,
                schedule="cosine_decay",
                warmup_steps=300,
                peak_learning_rate=1e-3,
                clip_norm=1.0,
                optimizer=AdamW(weight_decay=0.05),
                eval_every=500,
                checkpoint_every=500,
            ),
            label_smoothing=0.1,
        )
    )
