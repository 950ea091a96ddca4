"""Observers of the config sections of DETR: detection, and the ResNet that it reads pictures with."""

import dataclasses
import pathlib

from tests.support import boxed_pictures
from tests.tasks import wiring_image_classification
from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_SPLITS
from tests.wiring.observers import observe_task
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.resnet import ResNetConfig

MODEL = DETRConfig(
    channels=1,
    classes=10,
    queries=3,
    encoder_layers=1,
    decoder_layers=1,
    backbone_depths=(1,),
    backbone_width=4,
    backbone_stem="small",
    pixel_mean=(0.5,),
    pixel_deviation=(0.5,),
    d_model=8,
    d_ff=12,
    heads=2,
)
WITHOUT_NORMALIZATION = dataclasses.replace(MODEL, pixel_mean=(), pixel_deviation=())
RESNET = ResNetConfig(image_size=8, channels=1, classes=10, depths=(1,), width=4, stem="small")
SCENES = BoxedPicturesConfig(height=16, width=16, max_objects=2, batch_size=3, evaluated=2)
ARRAYS = BoxedPicturesConfig(kind="arrays", file="boxes.npz", height=8, width=8, max_objects=2, batch_size=3)
COCO = BoxedPicturesConfig(
    kind="coco",
    directory="coco",
    train="small",
    validation="small",
    test="small",
    height=8,
    width=8,
    max_objects=2,
    batch_size=3,
)
YOLO = dataclasses.replace(COCO, kind="yolo", directory="yolo")


def observe_model(model: DETRConfig) -> Observation:
    """Observes a detector with this model."""
    return observe_task(detection.Config(model=model, data=SCENES, validation_samples=1))


def observe_scenes(data: BoxedPicturesConfig) -> Observation:
    """Observes a detector with this data section."""
    channels = 3 if data.kind in ("coco", "yolo") else 1
    model = dataclasses.replace(WITHOUT_NORMALIZATION, channels=channels)
    return observe_task(detection.Config(model=model, data=data, validation_samples=1))


def write_data() -> None:
    """Writes pictures with boxes in all forms."""
    boxed_pictures.write_arrays(pathlib.Path())
    boxed_pictures.write_coco(pathlib.Path("coco"))
    boxed_pictures.write_yolo(pathlib.Path("yolo"))


CASES = [
    Case(RESNET, wiring_image_classification.observe_model),
    Case(MODEL, observe_model),
    Case(WITHOUT_NORMALIZATION, observe_model),
    Case(SCENES, observe_scenes),
    *make_cases(ARRAYS, observe_scenes, {"flip": True}),
    Case(COCO, observe_scenes),
    Case(YOLO, observe_scenes),
    Case(detection.Config(model=MODEL, data=SCENES, validation_samples=1), observe_task),
]
VALUES = {
    ResNetConfig: {"depths": (2,)},
    DETRConfig: {"backbone_depths": (2,), "pixel_mean": (0.25,), "pixel_deviation": (0.25,)},
    BoxedPicturesConfig: {"directory": "elsewhere", "file": "others.npz"} | OTHER_SPLITS,
}
