"""DETR with a ResNet-50 on COCO 2017. This config was not run.

    python train.py --config=configs/detr_coco.py --workdir=runs/detr_coco --config.data.directory=COCO
    python eval.py --workdir=runs/detr_coco

COCO contains annotations/instances_train2017.json, annotations/instances_val2017.json, train2017/ and
val2017/, as the archives of cocodataset.org. Hardware: accelerators with 80 GB each; the paper trained for
three days on 16 V100. Time and scores are not measured.

Deviations from the paper: pictures are resized to at most 1,024 x 1,024 pixels and only mirrored, where the
paper draws sizes and crops at random. The backbone begins with random parameters, not with ImageNet's. To
begin with the parameters of your own classifier, use --warm_start as in configs/detr.py. The rate rises for
1,000 steps and falls with a cosine, where the paper divides it by 10 after 200 of 300 epochs.
"""

from tfm.config import to_config_dict
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.task import Config
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

EPOCHS, PICTURES, BATCH_SIZE = 300, 118_287, 64


def get_config():
    data = BoxedPicturesConfig(
        kind="coco",
        directory="coco",
        train="train2017",
        validation="val2017",
        test="val2017",
        height=1024,
        width=1024,
        max_objects=100,
        flip=True,
        batch_size=BATCH_SIZE,
        evaluated=5000,
    )
    training = TrainingConfig(
        steps=EPOCHS * PICTURES // BATCH_SIZE,
        schedule="cosine_decay",
        warmup_steps=1000,
        peak_learning_rate=1e-4,
        learning_rate_factors=("backbone/*=0.1",),
        clip_norm=0.1,
        optimizer=AdamW(weight_decay=1e-4),
        eval_every=5000,
        checkpoint_every=5000,
        keep=3,
    )
    return to_config_dict(Config(model=DETRConfig(), data=data, training=training))
