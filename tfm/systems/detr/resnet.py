"""Residual networks (He et al. 2016) that classify images. The defaults describe ResNet-50.

Shape letters: B images, C channels.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.config import InheritsHelp, check_fields, field
from tfm.layers.batch_norm import Rows
from tfm.layers.block_config import fixed_field, name_field
from tfm.layers.dense import dense
from tfm.layers.observe import observe
from tfm.systems.detr.residual_layers import STEMS, ResNet


@dataclasses.dataclass(frozen=True)
class ResNetConfig(InheritsHelp):
    """The config of a residual network that classifies images. The defaults describe ResNet-50."""

    name: str = name_field("resnet")
    image_size: int = fixed_field(
        224, "Height and width of an image.", minimum=1, maximum=8192, unit="pixels"
    )
    channels: int = fixed_field(3, "Number of channels of an image.", minimum=1, maximum=1024)
    classes: int = fixed_field(1000, "Number of classes.", minimum=2, maximum=10_000_000, unit="classes")
    depths: tuple[int, ...] = fixed_field(
        (3, 4, 6, 3), "Number of blocks of each stage. The default is ResNet-50."
    )
    width: int = fixed_field(
        64, "Channels inside the first blocks.", minimum=1, maximum=65_536, unit="channels"
    )
    stem: str = fixed_field(
        "imagenet",
        "Start of the network. imagenet: a 7 x 7 convolution and pooling that shrink height and width by a "
        "factor of 4. small: a 3 x 3 convolution that shrinks them by a factor of 2, for small images.",
        choices=STEMS,
    )
    dtype: str = field("float32", "Compute dtype. Parameters are float32.", choices=("float32", "bfloat16"))

    def __post_init__(self):
        check_fields(self, "model")


class ResNetClassifier(nn.Module):
    """A residual network, followed by the mean over its feature map and a dense layer.

    Attributes:
      config: See `ResNetConfig`.
    """

    config: ResNetConfig

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.backbone = ResNet(config.depths, config.width, config.stem, dtype=dtype)
        self.head = dense(config.classes, dtype=dtype)

    def __call__(self, images: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Returns the logits [B, classes] of images [B, height, width, C], in the compute dtype.

        For rows and train, see `tfm.layers.BatchNorm`.
        """
        return observe(self, "logits", self.head(self.features(images, rows, train=train)), "BV")

    def features(self, images: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Returns the mean of the feature map [B, features], the input of the last layer."""
        return self.backbone(images, rows, train=train).mean((1, 2))


Config = ResNetConfig
Model = ResNetClassifier
