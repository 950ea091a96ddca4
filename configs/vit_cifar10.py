"""A Vision Transformer of the size of Ti/16, with patches of 4 x 4 pixels, on the 60,000 images of CIFAR-10.

    python train.py --config=configs/vit_cifar10.py --workdir=runs/vit_cifar10
    python eval.py --workdir=runs/vit_cifar10

Hardware: one GPU. Time and accuracy: not measured.
TFDS downloads the images (163 MB) on first use. The last 5,000 of the 50,000 training images validate.
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
                image_size=32, patch_size=4, classes=10, encoder_layers=12, d_model=192, d_ff=768, heads=3
            ),
            data=ImagesConfig(
                kind="tfds",
                name="cifar10",
                train="train[:45000]",
                validation="train[45000:]",
                batch_size=512,
                max_shift=4,
                flip=True,
            ),
            training=TrainingConfig(
                steps=20_000,
                schedule="cosine_decay",
                warmup_steps=1000,
                peak_learning_rate=1e-3,
                clip_norm=1.0,
                optimizer=AdamW(weight_decay=0.1),
                eval_every=1000,
                checkpoint_every=1000,
            ),
            label_smoothing=0.1,
        )
    )
