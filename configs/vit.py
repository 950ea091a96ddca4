"""Vision Transformers on digits of 8 x 8 pixels, on MNIST and on CIFAR-10.

    python train.py --config=configs/vit.py:digits --workdir=runs/vit_digits
    python eval.py --workdir=runs/vit_digits

digits (the default): a small model on the 1,797 digits that come with scikit-learn. Hardware: any CPU; needs
the extra digits. Expected result: see docs/results.md.
Patches of 2 x 2 pixels are not more accurate, see benchmarks/notes/digit_patches.md.
mnist: a small model on 70,000 digits of 28 x 28 pixels. Hardware: one GPU, or a CPU for an hour or more. TFDS
downloads the images (11 MB) on first use. The last 5,000 of the 60,000 training images validate.
cifar10: a model of the size of Ti/16, with patches of 4 x 4 pixels, on 60,000 images. Hardware: one GPU. TFDS
downloads the images (163 MB) on first use. The last 5,000 of the 50,000 training images validate. Time and
accuracy of mnist and cifar10 are not measured.

Deviations from the paper: the models are narrow, read few patches and begin with random parameters. They
train with label smoothing of 0.1, weight decay of 0.05 (cifar10: 0.1), and images that are moved by a few
pixels (cifar10: and mirrored). The model of the digits has no dropout and no clipping.
"""

from tfm.config import to_config_dict
from tfm.data.config import ImagesConfig
from tfm.systems.vit.model import ViTConfig
from tfm.tasks.image_classification import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW


def get_config(name="digits"):
    configs = {"digits": digits, "mnist": mnist, "cifar10": cifar10}
    if name not in configs:
        raise ValueError(f"Expected {', '.join(configs)}, got {name!r}.")
    return to_config_dict(configs[name]())


def digits():
    return Config(
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
        training=training(
            steps=1000,
            warmup_steps=100,
            rate=2e-3,
            weight_decay=0.05,
            every=200,
            clip_norm=None,
            log_every=100,
            keep=3,
        ),
        label_smoothing=0.1,
    )


def mnist():
    return Config(
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
        training=training(steps=6000, warmup_steps=300, rate=1e-3, weight_decay=0.05, every=500),
        label_smoothing=0.1,
    )


def cifar10():
    return Config(
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
        training=training(steps=20_000, warmup_steps=1000, rate=1e-3, weight_decay=0.1, every=1000),
        label_smoothing=0.1,
    )


def training(*, steps, warmup_steps, rate, weight_decay, every, clip_norm=1.0, **others):
    return TrainingConfig(
        steps=steps,
        schedule="cosine_decay",
        warmup_steps=warmup_steps,
        peak_learning_rate=rate,
        clip_norm=clip_norm,
        optimizer=AdamW(weight_decay=weight_decay),
        eval_every=every,
        checkpoint_every=every,
        **others,
    )
