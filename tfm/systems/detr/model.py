"""DETR (Carion et al. 2020): a Transformer that turns the feature map of an image into a set of objects.

The defaults describe DETR with a ResNet-50 for COCO: vectors for the places of an image are added to the
queries and keys of every attention, and each of N learned object queries predicts a class or "no object", and
a box.

Shape letters: B images, H height and W width of the feature map, P = H * W places, N object queries, D model
width.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from tfm import layers
from tfm.config import without_fields
from tfm.layers.block_config import BlockConfig, fixed_field
from tfm.layers.dense import dense
from tfm.layers.observe import observe
from tfm.systems.detr.resnet import STEMS, FrozenBatchNorm, ResNet

TEMPERATURE = 10_000.0  # of the sinusoids


@dataclasses.dataclass(frozen=True)
@without_fields(
    positions="none", first_position=0, attention_window=None, feed_forward_kernel=1, scan=False
)  # Places have vectors instead, and have neighbours in two dimensions.
class DETRConfig(BlockConfig):
    """The config of DETR. The defaults describe DETR with a ResNet-50 for COCO."""

    name: str = "detr"
    channels: int = fixed_field(3, "Number of channels of an image.", minimum=1, maximum=1024)
    classes: int = fixed_field(
        91, "Number of classes, without the class of no object.", minimum=1, maximum=1_000_000, unit="classes"
    )
    queries: int = fixed_field(
        100,
        "Number of object queries, the largest number of objects of an image, N.",
        minimum=1,
        maximum=65_536,
    )
    encoder_layers: int = fixed_field(6, "Number of encoder layers.", minimum=1, maximum=1000, unit="layers")
    decoder_layers: int = fixed_field(6, "Number of decoder layers.", minimum=1, maximum=1000, unit="layers")
    backbone_depths: tuple[int, ...] = fixed_field(
        (3, 4, 6, 3), "Number of blocks of each stage of the ResNet. The default is ResNet-50."
    )
    backbone_width: int = fixed_field(
        64, "Channels inside the first blocks of the ResNet.", minimum=1, maximum=65_536, unit="channels"
    )
    backbone_stem: str = fixed_field(
        "imagenet",
        "Start of the ResNet. imagenet: a 7 x 7 convolution and pooling that shrink the image by 4. small: "
        "a 3 x 3 convolution that shrinks it by 2, for images of few pixels.",
        choices=STEMS,
    )
    pixel_mean: tuple[float, ...] = fixed_field(
        (),
        "Mean of each channel, for pixels from 0 to 1, that a pretrained backbone expects to be subtracted. "
        "Empty: the backbone reads pixels from -1 to 1.",
    )
    pixel_deviation: tuple[float, ...] = fixed_field(
        (), "Deviation of each channel, by which pixels are divided after the mean is subtracted."
    )
    d_model: int = 256
    attention_bias: bool = True
    layer_norm_epsilon: float = 1e-5
    feed_forward_dropout: float | None = None

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        sizes = len(self.pixel_mean), len(self.pixel_deviation)
        if sizes not in ((0, 0), (self.channels, self.channels)):
            yield (
                f"Expected model.pixel_mean and model.pixel_deviation to have a value for each of the "
                f"{self.channels} channels, or to be empty, got {sizes[0]} and {sizes[1]} values."
            )
        if any(deviation <= 0 for deviation in self.pixel_deviation):
            yield f"Expected model.pixel_deviation to be above 0, got {self.pixel_deviation}."
        if self.d_model % 4:
            yield (
                "Expected model.d_model to be a multiple of 4, because the vector of a place has sines and "
                f"cosines of its row and of its column, got {self.d_model}."
            )


class Detections(NamedTuple):
    """The predictions of all decoder layers. The last layer is the result.

    Attributes:
      logits: [layers, B, N, classes + 1]. The last class is "no object".
      boxes: [layers, B, N, 4], center x, center y, width and height as shares of the image.
    """

    logits: jax.Array
    boxes: jax.Array


class NormOfEach(nn.Module):
    """A norm that is applied to the output of each layer.

    Attributes:
      norm: The norm.
    """

    norm: nn.Module

    def __call__(self, outputs: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
        """Maps a list of arrays [B, N, D] to [layers, B, N, D]."""
        del mask  # all queries are objects or no objects
        return jnp.stack([self.norm(x) for x in outputs])


class BoxHead(nn.Module):
    """A network of three layers that predicts boxes.

    Attributes:
      features: Width of the hidden layers.
      dtype: Compute dtype.
    """

    features: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps x [..., D] to boxes [..., 4], from 0 to 1."""
        for index in range(2):
            x = nn.relu(dense(self.features, dtype=self.dtype, name=f"hidden_{index}")(x))
        return nn.sigmoid(dense(4, dtype=self.dtype, name="output")(x))


class DETR(layers.TransformerBase):
    """A detector of objects.

    To replace a submodule, override the method that creates it, as in `tfm.models.Transformer`.

    Attributes:
      config: See `DETRConfig`.
    """

    config: DETRConfig
    attention_points: ClassVar[dict[str, str]] = {
        "encoder": "encoder.layers_*.self_attention.weights",
        "cross": "decoder.layers_*.cross_attention.weights",
    }
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {
        "encoder": ("places", "places"),
        "cross": ("predicted", "places"),
    }

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.check_device()
        self.backbone = self.make_backbone()
        self.projection = dense(config.d_model, dtype=dtype)
        normal = nn.initializers.normal(1.0)
        self.queries = self.param("queries", normal, (config.queries, config.d_model))
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.decoder = layers.Stack(
            self.make_decoder_layer, config.decoder_layers, remat=config.remat, make_output=self.make_output
        )
        self.class_head = dense(config.classes + 1, dtype=dtype)
        self.box_head = BoxHead(config.d_model, dtype)

    def make_backbone(self) -> nn.Module:
        """Returns the network that maps images [B, height, width, C] to a feature map [B, H, W, features]."""
        config = self.config
        sizes = config.backbone_depths, config.backbone_width, config.backbone_stem
        return ResNet(*sizes, norm=FrozenBatchNorm, dtype=jnp.dtype(config.dtype))

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the encoder layer with this index, counted from 0."""
        del index  # all layers are equal
        constants = layers.single_stack_constants(self.config.encoder_layers)
        return self.make_layer_with(constants, self.make_attention())

    def make_decoder_layer(self, index: int) -> nn.Module:
        """Returns the decoder layer with this index, counted from 0."""
        del index
        constants = layers.single_stack_constants(self.config.decoder_layers)
        return self.make_layer_with(constants, self.make_attention(), self.make_attention())

    def make_output(self) -> nn.Module:
        """Returns the module that maps the outputs of the decoder layers to [layers, B, N, D]."""
        return NormOfEach(self.make_norm())

    def __call__(self, images: jax.Array, valid: jax.Array | None = None, *, train: bool) -> Detections:
        """Predicts the objects of images.

        Args:
          images: [B, height, width, C].
          valid: bool [B, height, width], True for pixels of the image and False for padding at its right and
            bottom. None means that no pixel is padding.
          train: Whether dropout is on.

        Returns:
          The `Detections` of all decoder layers, in the compute dtype.
        """
        config = self.config
        features = self.backbone(self._normalize(images, valid), train=train)
        batch, height, width, _ = features.shape
        if valid is None:
            valid = jnp.ones(features.shape[:3], bool)
        else:  # the nearest pixel of each place
            rows, columns = (
                np.arange(n) * m // n for n, m in zip((height, width), valid.shape[1:], strict=True)
            )
            valid = valid[:, rows][:, :, columns]
        places = encode_places(valid, config.d_model).reshape(batch, -1, config.d_model).astype(config.dtype)
        mask = valid.reshape(batch, 1, 1, -1)
        x = observe(self, "encoder.embeddings", self.projection(features).reshape(places.shape))
        x = self.encoder(x, mask=mask, position_vectors=places, train=train)
        queries = jnp.broadcast_to(self.queries.astype(config.dtype), (batch, *self.queries.shape))
        where: Any = {"position_vectors": queries, "source_vectors": places}
        x = self.decoder(jnp.zeros_like(queries), x, mask=None, source_mask=mask, **where, train=train)
        return Detections(observe(self, "logits", self.class_head(x), "NBLV"), self.box_head(x))

    def _normalize(self, images: jax.Array, valid: jax.Array | None) -> jax.Array:
        """Returns images with the mean and deviation that the backbone expects, with 0 in padding."""
        config = self.config
        if not config.pixel_mean:
            return images
        normalized = ((images + 1) / 2 - jnp.array(config.pixel_mean)) / jnp.array(config.pixel_deviation)
        return normalized if valid is None else jnp.where(valid[..., None], normalized, 0)


def encode_places(valid: jax.Array, features: int) -> jax.Array:
    """Computes sinusoids of the rows and columns of the places of an image.

    Rows and columns are counted from 1 in the valid part and divided by their largest number, times 2 pi.

    Args:
      valid: bool [B, H, W], False for padding.
      features: D, a multiple of 4.

    Returns:
      [B, H, W, D]: the first half of the features encodes the row, and the second half encodes the column.
      Sines and cosines alternate.
    """
    parts = []
    rates = TEMPERATURE ** -(jnp.arange(0, features // 2, 2) / (features // 2))
    for axis in (1, 2):
        index = valid.cumsum(axis, dtype=jnp.float32)
        last = jax.lax.slice_in_dim(index, index.shape[axis] - 1, None, axis=axis)
        angles = (2 * jnp.pi * index / (last + 1e-6))[..., None] * rates
        parts.append(jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(*valid.shape, features // 2))
    return jnp.concatenate(parts, -1)


Config = DETRConfig
Model = DETR
