"""Observers of the config sections of systems that generate images or detect objects."""

import dataclasses
import itertools
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np

from tests.support import images
from tests.wiring.observers import Observation, list_values, trace
from tfm import tasks
from tfm.config import to_config_dict
from tfm.data.config import ImagesConfig
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.resnet import ResNetConfig
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.tasks import image_classification as classification
from tfm.testing.parameters import random_parameters
from tfm.training.config import TrainingConfig
from tfm.training.frozen import write_frozen
from tfm.training.task import Context
from tfm.workdir.warm_start import copy_frozen_models

SCENES = BoxedPicturesConfig(height=16, width=16, max_objects=2, batch_size=3, evaluated=2)
SMALL_SPLITS = {"train": "small", "validation": "small", "test": "small"}
BOXES = BoxedPicturesConfig(kind="arrays", file="boxes.npz", height=8, width=8, max_objects=2, batch_size=3)
COCO = BoxedPicturesConfig(
    kind="coco", directory="coco", height=8, width=8, max_objects=2, batch_size=3, **SMALL_SPLITS
)
YOLO = dataclasses.replace(COCO, kind="yolo", directory="yolo")
CAPTIONS = CaptionsConfig(batch_size=3, evaluated=2)
OWN_CAPTIONS = CaptionsConfig(
    kind="table", directory="captions", vocabulary_size=280, batch_size=3, evaluated=2
)
PICTURES = ImagesConfig(kind="digits", batch_size=3)
TRAINING = TrainingConfig(peak_learning_rate=1e-3)
SAGAN = SelfAttentionGANConfig(
    image_size=8, channels=1, classes=10, noise=5, width=8, smallest_map=1, attention_map=4
)
DETR = DETRConfig(
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
DVAE = DVAEConfig(image_size=16, codes=7, width=8, code_width=5, groups=3, blocks=1)
DALLE = DALLEConfig(
    text_vocabulary=23,
    codes=7,
    text_length=5,
    side=4,
    kernel=3,
    layers=1,
    d_model=8,
    d_ff=12,
    heads=2,
    attention_dropout=0.0,
)
RESNET = ResNetConfig(image_size=8, channels=1, classes=10, depths=(1,), width=4, stem="small")


def observe_system(config: Any) -> Observation:
    """Traces the losses of a task, and observes its batches and its evaluation with random parameters."""
    with tempfile.TemporaryDirectory() as workdir:
        if isinstance(config, image_generation.Config) and not config.judge:
            images.write_judge(pathlib.Path(workdir), config.model)
        if isinstance(config, text_to_image.Config) and not config.judge:
            images.write_judge(pathlib.Path(workdir), text_to_image.DIGITS)
        if isinstance(config, text_to_image.Config) and not config.first_stage:
            _write_first_stage(config.model, workdir)
        copy_frozen_models(config, workdir)
        task = tasks.find(config.task).create(config, workdir)
    data = task.open_data()
    key = jax.random.key(0)
    init, variables = trace(task.init, key)
    context = Context(0, key, task.constants())
    losses = [trace(update.loss, variables, data.example(), context)[0] for update in task.updates()]
    filled = jax.tree.map(lambda x: np.full(x.shape, 0.1, x.dtype), variables)
    samples = task.evaluate(filled, data).samples
    report = next(iter(task.report(filled, "test")))
    return {
        "init": init,
        "losses": losses,
        "train": list_values(itertools.islice(data.train_batches(0), 1)),
        "samples": None if samples is None else len(samples.rows),
        "test": (report.examples, report.identity),
    }


def observe_image_model(model: Any) -> Observation:
    """Observes the system to which a model belongs."""
    if isinstance(model, ResNetConfig):
        config = classification.Config(model=model, data=PICTURES)
        task = classification.Classification(config, [str(number) for number in range(model.classes)], "")
        init, variables = trace(task.init, jax.random.key(0))
        image = np.zeros((2, model.image_size, model.image_size, model.channels), np.float32)
        batch = {"images": image, "labels": np.zeros(2, int), "weights": np.ones(2)}
        return {"init": init, "loss": trace(task.loss, variables, batch, Context(0, jax.random.key(0)))[0]}
    if isinstance(model, SelfAttentionGANConfig):
        config = image_generation.Config(model=model, data=PICTURES, training=TRAINING, validation_samples=1)
        return observe_system(config)
    if isinstance(model, DETRConfig):
        return observe_system(detection.Config(model=model, data=SCENES, validation_samples=1))
    if isinstance(model, DVAEConfig):
        return observe_system(image_tokens.Config(model=model, data=CAPTIONS, validation_samples=1))
    return observe_system(text_to_image.Config(model=model, data=CAPTIONS, validation_samples=1))


def observe_scenes(data: Any) -> Observation:
    """Observes a detector with this data section."""
    channels = 3 if data.kind in ("coco", "yolo") else 1
    model = dataclasses.replace(DETR, channels=channels, pixel_mean=(), pixel_deviation=())
    return observe_system(detection.Config(model=model, data=data, validation_samples=1))


def observe_captions(data: Any) -> Observation:
    """Observes an autoencoder with this data section."""
    return observe_system(image_tokens.Config(model=DVAE, data=data, validation_samples=1))


def observe_own_captions(data: Any) -> Observation:
    """Observes a model of captions with this data section."""
    model = dataclasses.replace(DALLE, text_vocabulary=300, text_length=12)
    return observe_system(text_to_image.Config(model=model, data=data, validation_samples=1))


def _write_first_stage(model: DALLEConfig, workdir: str) -> None:
    """Writes a random autoencoder with the codes of a language model."""
    sizes = {"codes": model.codes, "image_size": 4 * model.side}
    config = DVAEConfig(width=8, code_width=5, groups=3, blocks=1, **sizes)
    image = np.zeros((1, config.image_size, config.image_size, 3), np.float32)
    params = random_parameters(DiscreteVAE(config), image)
    path = f"{workdir}/first_stage.safetensors"
    write_frozen(path, to_config_dict(config).to_dict(), {"params": params})
