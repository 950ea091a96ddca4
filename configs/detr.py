"""DETR on generated scenes of digits. For COCO, see configs/detr_coco.py.

    python train.py --config=configs/detr.py:backbone --workdir=runs/backbone
    python train.py --config=configs/detr.py:digits --workdir=runs/detr --warm_start=runs/backbone \
        --warm_start_map="backbone/*/scale (batch_stats)=backbone/*/scale" \
        --warm_start_map="backbone/*/bias (batch_stats)=backbone/*/bias" \
        --warm_start_map="backbone/*=backbone/*"
    python eval.py --workdir=runs/detr

backbone: a small ResNet that classifies the 1,797 digits that come with scikit-learn. digits (the default): a
small DETR with this network as its backbone, on scenes of up to three digits. Hardware: any CPU. Both
variants need the optional dependencies `digits`.

Deviations from the paper: a small backbone and a small Transformer without dropout and with norms before the
sublayers, 8 queries, and pictures that are not changed at random. All parts learn at one rate, which rises to
1e-3 and falls to 0 with a cosine, and gradients are clipped at a norm of 1 instead of 0.1.
Scores: docs/results.md.
"""

from tfm.config import to_config_dict
from tfm.data.config import ImagesConfig
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.resnet import ResNetConfig
from tfm.tasks import image_classification as classification
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

DEPTHS, WIDTH, STEM = (1, 1), 24, "small"  # of the small ResNet


def get_config(name="digits"):
    configs = {"digits": digits, "backbone": backbone}
    if name not in configs:
        raise ValueError(f"Expected {', '.join(configs)}, got {name!r}.")
    return to_config_dict(configs[name]())


def backbone():
    model = ResNetConfig(image_size=8, channels=1, classes=10, depths=DEPTHS, width=WIDTH, stem=STEM)
    data = ImagesConfig(kind="digits", batch_size=64, max_shift=2)
    return classification.Config(model=model, data=data, training=training(steps=800, every=400))


def digits():
    model = DETRConfig(
        channels=1,
        classes=10,
        queries=8,
        encoder_layers=2,
        decoder_layers=2,
        backbone_depths=DEPTHS,
        backbone_width=WIDTH,
        backbone_stem=STEM,
        d_model=64,
        d_ff=128,
        heads=4,
        dropout=0.0,
        norm_order="pre",
    )
    data = BoxedPicturesConfig(height=24, width=24, max_objects=3, batch_size=32)
    return detection.Config(model=model, data=data, training=training(steps=5000, every=1000))


def training(*, steps, every):
    return TrainingConfig(
        steps=steps,
        schedule="cosine_decay",
        warmup_steps=100,
        peak_learning_rate=1e-3,
        clip_norm=1.0,
        optimizer=AdamW(weight_decay=1e-4),
        eval_every=every,
        checkpoint_every=every,
        keep=2,
    )
