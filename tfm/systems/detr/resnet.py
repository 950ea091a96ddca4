"""Residual networks (He et al. 2016) that classify images. The defaults describe ResNet-50.

Shape letters: B images, C channels.
"""

import dataclasses
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from tfm.config import InheritsHelp, check_fields, field
from tfm.layers.batch_norm import BatchNorm, Rows
from tfm.layers.block_config import fixed_field, name_field
from tfm.layers.dense import dense
from tfm.layers.observe import observe

STEMS = ("imagenet", "small")
EXPANSION = 4  # channels of a block's output for each channel inside the block


class FrozenBatchNorm(nn.Module):
    """A batch norm whose statistics, scale and bias are state that training does not change.

    Initially it computes the identity. The values come from a network that was trained with batch norm.

    Attributes:
      epsilon: Number added to the variance.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Normalizes each feature of x [..., C], in the dtype of x. Ignores `rows` and `train`."""
        del rows, train
        features = x.shape[-1:]
        mean, bias = (self.variable("batch_stats", name, jnp.zeros, features) for name in ("mean", "bias"))
        variance, scale = (
            self.variable("batch_stats", name, jnp.ones, features) for name in ("variance", "scale")
        )
        factor = scale.value * jax.lax.rsqrt(variance.value + self.epsilon)
        return x * factor.astype(x.dtype) + (bias.value - mean.value * factor).astype(x.dtype)


class Bottleneck(nn.Module):
    """A residual block of a 1 x 1, a 3 x 3 and a 1 x 1 convolution. The 3 x 3 convolution has the stride.

    Attributes:
      features: Channels inside the block. The output has `EXPANSION` times as many.
      stride: Factor by which height and width shrink.
      norm: Function that returns a norm.
    """

    features: int
    stride: int
    norm: Callable[..., nn.Module] = BatchNorm

    @nn.compact
    def __call__(self, x: jax.Array, rows: Rows | None, *, train: bool) -> jax.Array:
        """Maps x [B, H, W, C] to [B, H / stride, W / stride, EXPANSION * features]."""
        features = EXPANSION * self.features

        def normalize(x, name):
            return self.norm(name=name)(x, rows, train=train)

        y = nn.relu(normalize(convolve(x, self.features, 1, "conv_1"), "norm_1"))
        y = nn.relu(normalize(convolve(y, self.features, 3, "conv_2", self.stride), "norm_2"))
        y = normalize(convolve(y, features, 1, "conv_3"), "norm_3")
        if x.shape != y.shape:
            x = normalize(convolve(x, features, 1, "shortcut", self.stride), "shortcut_norm")
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A residual network without its classifier.

    Attributes:
      depths: Number of blocks of each stage. Each stage after the first halves height and width.
      width: Channels inside the blocks of the first stage. Each stage doubles them.
      stem: "imagenet" begins with a 7 x 7 convolution and pooling that shrink height and width by a
        factor of 4. "small" begins with a 3 x 3 convolution that shrinks them by a factor of 2.
      norm: Function that returns a norm, `BatchNorm` or `FrozenBatchNorm`.
      dtype: Compute dtype.
    """

    depths: Sequence[int] = (3, 4, 6, 3)
    width: int = 64
    stem: str = "imagenet"
    norm: Callable[..., nn.Module] = BatchNorm
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, rows: Rows | None = None, *, train: bool) -> jax.Array:
        """Maps images [B, height, width, C] to the feature map of the last stage [B, H, W, features].

        For rows and train, see `BatchNorm`.
        """
        is_small = self.stem == "small"
        x = convolve(images.astype(self.dtype), self.width, 3 if is_small else 7, "stem", 2)
        x = nn.relu(self.norm(name="stem_norm")(x, rows, train=train))
        if not is_small:
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                stride = 2 if stage and not index else 1
                block = Bottleneck(
                    self.width * 2**stage, stride, self.norm, name=f"stage_{stage}_block_{index}"
                )
                x = block(x, rows, train=train)
        return x


def convolve(x: jax.Array, features: int, size: int, name: str, stride: int = 1) -> jax.Array:
    """Convolves x [B, H, W, C] without a bias. Zeros fill the margin of size // 2 pixels on each side."""
    init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # He et al. 2015
    padding = [(size // 2, size // 2)] * 2
    layer = nn.Conv(
        features, (size, size), stride, padding, use_bias=False, kernel_init=init, dtype=x.dtype, name=name
    )
    return layer(x)


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
