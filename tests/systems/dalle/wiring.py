"""Observers of the config sections of DALL-E: the autoencoder, and the model of captions and codes."""

import dataclasses
import pathlib

import numpy as np

from tests.support import captioned_pictures, images
from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_SPLITS
from tests.wiring.observers import observe_task
from tfm.config import to_config_dict
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.testing.parameters import random_parameters
from tfm.training.frozen import write_frozen

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
CAPTIONS = CaptionsConfig(batch_size=3, evaluated=2)
OWN_CAPTIONS = CaptionsConfig(
    kind="table", directory="captions", vocabulary_size=280, batch_size=3, evaluated=2
)


def observe_drawing(config: text_to_image.Config) -> Observation:
    """Observes the task that draws captions. Frozen models that the config does not name are random."""

    def write_models(workdir: str) -> None:
        if not config.judge:
            images.write_judge(pathlib.Path(workdir), text_to_image.DIGITS)
        if not config.first_stage:
            write_first_stage(config.model, workdir)

    return observe_task(config, write_models)


def write_first_stage(model: DALLEConfig, workdir: str) -> None:
    """Writes a random autoencoder with the codes of a language model."""
    config = dataclasses.replace(DVAE, codes=model.codes, image_size=4 * model.side)
    image = np.zeros((1, config.image_size, config.image_size, 3), np.float32)
    params = random_parameters(DiscreteVAE(config), image)
    path = f"{workdir}/first_stage.safetensors"
    write_frozen(path, to_config_dict(config).to_dict(), {"params": params})


def observe_language_model(model: DALLEConfig) -> Observation:
    """Observes the task that draws captions with this model."""
    return observe_drawing(text_to_image.Config(model=model, data=CAPTIONS, validation_samples=1))


def observe_own_captions(data: CaptionsConfig) -> Observation:
    """Observes the task that draws the user's own captions with this data section."""
    model = dataclasses.replace(DALLE, text_vocabulary=300, text_length=12)
    return observe_drawing(text_to_image.Config(model=model, data=data, validation_samples=1))


def observe_autoencoder(model: DVAEConfig) -> Observation:
    """Observes the task that trains this autoencoder."""
    return observe_task(image_tokens.Config(model=model, data=CAPTIONS, validation_samples=1))


def observe_pictures(data: CaptionsConfig) -> Observation:
    """Observes the task that trains an autoencoder with this data section."""
    return observe_task(image_tokens.Config(model=DVAE, data=data, validation_samples=1))


def write_data() -> None:
    """Writes pictures with captions."""
    captioned_pictures.write_captions(pathlib.Path("captions"))


CASES = [
    Case(DVAE, observe_autoencoder),
    *make_cases(DALLE, observe_language_model, {"norm_order": "post"}),  # required by deep_norm
    Case(CAPTIONS, observe_pictures),
    Case(OWN_CAPTIONS, observe_own_captions),
    Case(image_tokens.Config(model=DVAE, data=CAPTIONS, validation_samples=1), observe_task),
    Case(text_to_image.Config(model=DALLE, data=CAPTIONS, validation_samples=1), observe_drawing),
]
VALUES = {
    CaptionsConfig: {
        **dict.fromkeys(("directory", "pictures", "picture_column", "text_column"), "elsewhere"),
        "tokenizer": "bytes",
    }
    | OTHER_SPLITS,
    text_to_image.Config: {"judge": "elsewhere", "first_stage": "elsewhere"},
}
