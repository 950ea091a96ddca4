"""The Vision Transformer (Dosovitskiy et al. 2021): a Transformer encoder that reads the patches of an image.

The defaults describe the structure and the initialization of ViT-B/16 in that paper: a class token before the
patches, learned positions, pre-norm with a final norm, the exact gelu, biases, and a zero-initialized head.

Shape letters: B images, P height and width of a patch in pixels, N patches of an image, C channels, D model
width.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tfm import layers
from tfm.config import without_fields
from tfm.layers.block_config import BlockConfig, fixed_field
from tfm.layers.dense import dense
from tfm.layers.observe import observe

POSITION_DEVIATION = 0.02  # standard deviation of the initial position table, from the authors' code


@dataclasses.dataclass(frozen=True)
@without_fields(feed_forward_kernel=1)  # patches have neighbours in two dimensions
class ViTConfig(BlockConfig):
    """The config of a Vision Transformer. The defaults describe ViT-B/16 for ImageNet."""

    name: str = "vit"
    image_size: int = fixed_field(
        224, "Height and width of an image.", minimum=1, maximum=8192, unit="pixels"
    )
    channels: int = fixed_field(
        3,
        "Number of channels of an image, C: 1 for grey images, 3 for colour images.",
        minimum=1,
        maximum=1024,
    )
    patch_size: int = fixed_field(
        16,
        "Height and width of a patch, P. It must divide image_size.",
        minimum=1,
        maximum=8192,
        unit="pixels",
    )
    classes: int = fixed_field(1000, "Number of classes.", minimum=2, maximum=10_000_000, unit="classes")
    encoder_layers: int = fixed_field(12, "Number of encoder layers.", minimum=1, maximum=1000, unit="layers")
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    activation: str = "gelu"
    attention_bias: bool = True
    norm_order: str = "pre"
    positions: str = "learned"
    # The paper applies dropout after every dense layer except the query, key and value projections (appendix
    # B.1), so also after the hidden layer.
    feed_forward_dropout: float | None = None

    def _problems(self) -> Iterator[str]:
        """Yields an error message for each combination of fields that is not possible."""
        if self.image_size % self.patch_size:
            yield f"model.patch_size must divide model.image_size {self.image_size}, got {self.patch_size}."
        yield from super()._problems()

    @property
    def patches(self) -> int:
        """Number of patches of an image, N."""
        return (self.image_size // self.patch_size) ** 2


class VisionTransformer(layers.TransformerBase):
    """An image classifier.

    To replace a submodule, override the method that creates it, as in `tfm.models.Transformer`.

    Attributes:
      config: See `ViTConfig`.
    """

    config: ViTConfig
    attention_points: ClassVar[dict[str, str]] = {"encoder": "encoder.layers_*.self_attention.weights"}
    attention_tracks: ClassVar[dict[str, tuple[str, str]]] = {"encoder": ("patches", "patches")}
    parameter_axes: ClassVar = {"embedding/kernel": (None, "model"), "head/kernel": ("model", None)}

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.class_token = self.param("class_token", nn.initializers.zeros, (config.d_model,))
        self.positions = self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.head = self.make_head()

    def make_embedding(self) -> nn.Module:
        """Returns the projection of patches, [..., P * P * C] -> [..., D] (E in equation 1)."""
        config = self.config
        init = nn.initializers.lecun_normal()  # The authors use a convolution with this initializer.
        return dense(config.d_model, kernel_init=init, dtype=jnp.dtype(config.dtype))

    def make_positions(self) -> Callable[[jax.Array], jax.Array] | None:
        """Returns the function that computes the vectors added to embeddings, or None.

        It maps the positions 0 (the class token) through N to vectors [N + 1, D].
        """
        if self.config.positions != "learned":
            return super().make_positions()
        init = nn.initializers.normal(POSITION_DEVIATION)
        return layers.LearnedPositions(self.config.patches + 1, self.config.d_model, init)

    def resize_parameter(self, path: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """Interpolates the position table of a model for pictures of another size (section 3.2).

        A run with `--warm_start_map` calls this for arrays of another shape.

        Args:
          path: path of the parameter.
          array: the parameter of the other model.
          shape: shape of the parameter in this model.

        Returns:
          The array of this shape, or None for parameters that cannot be resized.
        """
        if path != "positions/table" or array.shape[1:] != shape[1:]:
            return None
        return resize_positions(array, self.config.image_size // self.config.patch_size)

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the layer with this index, counted from 0."""
        del index  # all layers are equal
        constants = layers.single_stack_constants(self.config.encoder_layers)
        return self.make_layer_with(constants, self.make_self_attention())

    def make_head(self) -> nn.Module:
        """Returns the projection to logits, [B, D] -> [B, classes]. Its initial kernel is 0."""
        zeros = nn.initializers.zeros
        return dense(self.config.classes, kernel_init=zeros, dtype=jnp.dtype(self.config.dtype))

    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Returns the logits [B, classes] of images [B, height, width, C], in the compute dtype.

        Raises:
          ValueError: If the images do not have the shape in the config.
        """
        return observe(self, "logits", self.head(self.features(images, train=train)), "BV")

    def features(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Returns the encoder output at the class token (equation 4).

        Args:
          images: [B, height, width, C].
          train: Whether dropout is on.

        Returns:
          [B, D].

        Raises:
          ValueError: If the images do not have the shape in the config.
        """
        config = self.config
        expected = (config.image_size, config.image_size, config.channels)
        if images.shape[1:] != expected:
            raise ValueError(
                f"Expected images of shape {expected} (model.image_size), got {images.shape[1:]}."
            )
        x = self.embedding(split_patches(images, config.patch_size).astype(config.dtype))
        class_token = jnp.broadcast_to(self.class_token.astype(config.dtype), (len(x), 1, config.d_model))
        x = jnp.concatenate([class_token, x], axis=1)
        index = jnp.arange(config.patches + 1)
        x = self.add_positions("encoder", x, self.positions, index, train=train)
        return self.encoder(x, mask=None, positions=index, train=train)[:, 0]


def resize_positions(table: np.ndarray, size: int) -> np.ndarray | None:
    """Interpolates the vectors of a square grid of patches linearly, as the authors' code does.

    The vectors of the four corners and the vector of the class token, which is the first, stay as they are. A
    new grid of a single patch gets the vector of the upper left corner.

    Args:
      table: [1 + n * n, D] for any n.
      size: height and width of the new grid in patches.

    Returns:
      [1 + size * size, D], or None if the patches of the table are no square grid.
    """
    features = table.shape[-1]
    old_size = math.isqrt(len(table) - 1)
    if old_size == 0 or old_size**2 != len(table) - 1:
        return None
    grid = table[1:].astype(np.float64).reshape(old_size, old_size, features)
    places = np.linspace(0, old_size - 1, size)
    lower = np.minimum(places.astype(int), max(old_size - 2, 0))
    upper = np.minimum(lower + 1, old_size - 1)
    share = places - lower
    grid = (1 - share)[:, None, None] * grid[lower] + share[:, None, None] * grid[upper]
    grid = (1 - share)[:, None] * grid[:, lower] + share[:, None] * grid[:, upper]
    return np.concatenate([table[:1], grid.reshape(-1, features).astype(table.dtype)])


def split_patches(images: jax.Array, size: int) -> jax.Array:
    """Splits images [B, height, width, C] into patches [B, N, size * size * C].

    The patches of an image, and the pixels of a patch, are ordered row by row.

    Raises:
      ValueError: If `size` does not divide the height and the width.

    Examples:
      >>> split_patches(jnp.arange(16).reshape(1, 4, 4, 1), 2)[0, 1].tolist()
      [2, 3, 6, 7]
    """
    batch, height, width, channels = images.shape
    if height % size or width % size:
        raise ValueError(f"Expected the patch size to divide images of {height} x {width}, got {size}.")
    split = images.reshape(batch, height // size, size, width // size, size, channels)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


Config = ViTConfig
Model = VisionTransformer
