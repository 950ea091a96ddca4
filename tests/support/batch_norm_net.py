"""A classifier of images with state: the statistics of a norm and the vector of a spectral norm."""

import dataclasses

import flax.linen as nn

from tfm import layers
from tfm.config import allow_modules, check_fields, field
from tfm.layers.batch_norm import BatchNorm

allow_modules([__name__])


@dataclasses.dataclass(frozen=True)
class Config:
    name: str = field(__name__, "This module.", warm_start=False)
    image_size: int = field(6, "Pixels of a side.", minimum=1, maximum=64, warm_start=False)
    channels: int = field(5, "Of an image.", minimum=1, maximum=16, warm_start=False)
    classes: int = field(3, "Of the images.", minimum=1, maximum=100, warm_start=False)
    d_model: int = field(8, "Hidden features.", minimum=1, maximum=100, warm_start=False)
    dropout: float = field(0.1, "Rate.", minimum=0, less_than=1)

    def __post_init__(self):
        check_fields(self, "model")


class Model(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, images, rows=None, *, train):
        x = images.reshape(len(images), -1)
        x = nn.SpectralNorm(nn.Dense(self.config.d_model, use_bias=False))(x, update_stats=train)
        x = nn.tanh(BatchNorm()(x, rows, train=train))
        x = layers.Dropout(self.config.dropout)(x, train=train)
        return nn.Dense(self.config.classes, name="head")(x)
