"""The Vision Transformer (Dosovitskiy et al. 2021): the encoder of a Transformer over patches of an image.

The defaults have the structure and the initialization of the paper's ViT-B/16: a class token before the
patches, learned positions, pre-norm with a final norm, the exact gelu, biases, and a head that begins at 0.

Shape letters: B images, P pixels on a side of a patch, N patches of an image, C channels, D model.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.layers.block_config import BlockConfig, fixed_field
from tfm.layers.dense import dense
from tfm.layers.observe import observe

POSITION_DEVIATION = 0.02  # of the table of positions, in the authors' code


@dataclasses.dataclass(frozen=True)
class ViTConfig(BlockConfig):
    """The paper's model. The defaults are those of ViT-B/16 for ImageNet."""

    name: str = "vit"
    image_size: int = fixed_field(224, "Height and width of an image.", least=1, most=8192, unit="pixels")
    channels: int = fixed_field(
        3, "Number of channels of an image, C: 1 for grey, 3 for colours.", least=1, most=1024
    )
    patch_size: int = fixed_field(
        16, "Height and width of a patch, P. Divides image_size.", least=1, most=8192, unit="pixels"
    )
    classes: int = fixed_field(1000, "Number of classes.", least=2, most=10_000_000, unit="classes")
    encoder_layers: int = fixed_field(12, "Number of layers, N.", least=1, most=1000, unit="layers")
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    activation: str = "gelu"
    attention_bias: bool = True
    norm_order: str = "pre"
    positions: str = "learned"
    feed_forward_dropout: float | None = None  # the paper drops after every dense layer (appendix B.1)

    def _problems(self):
        if self.image_size % self.patch_size:
            yield f"model.patch_size must divide model.image_size {self.image_size}, got {self.patch_size}."
        yield from super()._problems()

    @property
    def patches(self) -> int:
        """Number of patches of an image, N."""
        return (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class ViTMemory:
    """The `tfm.memory_estimate.MemoryEstimate` of a `VisionTransformer`."""

    config: ViTConfig

    def count_parameters(self) -> int:
        """Returns the exact number of parameters."""
        config = self.config
        one, two = (_count(dataclasses.replace(config, encoder_layers=layers)) for layers in (1, 2))
        return one + (config.encoder_layers - 1) * (two - one)

    def sizes(self) -> dict[str, int]:
        """Returns {config field: value} of the fields that determine the number of parameters."""
        names = ("image_size", "patch_size", "classes", "encoder_layers", "d_model", "d_ff")
        return {f"model.{name}": getattr(self.config, name) for name in names}

    def layers(self) -> dict[str, int]:
        """Returns {config field: number of layers}."""
        return {"model.encoder_layers": self.config.encoder_layers}


def _count(config: ViTConfig) -> int:
    image = jnp.zeros((1, config.image_size, config.image_size, config.channels))
    init = functools.partial(VisionTransformer(config).init, train=False)
    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0), image)))


@layers.declare_axes({"embedding/kernel": ("pixels", "model"), "head/kernel": ("model", "classes")})
class VisionTransformer(layers.TransformerBase):
    """A classifier of images.

    A subclass replaces a submodule by overriding the method that makes it, as for `tfm.models.Transformer`.

    Attributes:
      config: See `ViTConfig`.
    """

    config: ViTConfig

    def setup(self) -> None:
        config = self.config
        self.check_device()
        self.embedding = self.make_embedding()
        self.class_token = self.param("class_token", nn.initializers.zeros, (config.d_model,))
        self.positions = self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.head = self.make_head()

    @property
    def memory_estimate(self) -> ViTMemory:
        """The bytes that the model needs, computed from its config."""
        return ViTMemory(self.config)

    def make_embedding(self) -> nn.Module:
        """Returns the embedding of patches, [..., P * P * C] -> [..., D], E of equation 1."""
        config = self.config
        init = nn.initializers.lecun_normal()  # the authors' initializer of a convolution
        return dense(config.d_model, kernel_init=init, dtype=jnp.dtype(config.dtype))

    def make_positions(self) -> Callable[[jax.Array], jax.Array] | None:
        """Returns a function of the positions 0 to N -> [N + 1, D], which is added to embeddings, or None."""
        if self.config.positions != "learned":
            return super().make_positions()
        init = nn.initializers.normal(POSITION_DEVIATION)
        return layers.LearnedPositions(self.config.patches + 1, self.config.d_model, init)

    def make_encoder_layer(self, index: int) -> nn.Module:
        """Returns the layer number `index`, counted from 0."""
        del index  # all layers are equal
        layer = layers.Layer(
            self.make_self_attention(), self.make_feed_forward(), residual=self.make_residual
        )
        constants = layers.single_stack_constants(self.config.encoder_layers)
        return layers.apply_deep_norm(layer, constants) if self.config.deep_norm else layer

    def make_head(self) -> nn.Module:
        """Returns the projection of the features of an image, [B, D] -> [B, classes]. It begins at 0."""
        zeros = nn.initializers.zeros
        return dense(self.config.classes, kernel_init=zeros, dtype=jnp.dtype(self.config.dtype))

    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Maps images [B, height, width, C] to logits [B, classes] in the compute dtype.

        Raises:
          ValueError: The images do not have the shape of the config.
        """
        return observe(self, "logits", self.head(self.features(images, train=train)), "BV")

    def features(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Maps images [B, height, width, C] to the encoder output at the class token, [B, D] (equation 4)."""
        config = self.config
        expected = (config.image_size, config.image_size, config.channels)
        if images.shape[1:] != expected:
            raise ValueError(f"expected images of shape {expected}, got {images.shape[1:]}")
        x = self.embedding(split_patches(images, config.patch_size).astype(config.dtype))
        class_token = jnp.broadcast_to(self.class_token.astype(config.dtype), (len(x), 1, config.d_model))
        x = jnp.concatenate([class_token, x], axis=1)
        index = jnp.arange(config.patches + 1)
        x = self.add_positions("encoder", x, self.positions, index, train=train)
        return self.encoder(x, mask=None, positions=index, train=train)[:, 0]


def split_patches(images: jax.Array, size: int) -> jax.Array:
    """Splits images [B, height, width, C] into patches [B, N, size * size * C].

    The patches of an image, and the pixels of a patch, are in the order of rows.

    Raises:
      ValueError: `size` does not divide the height and the width.

    >>> split_patches(jnp.arange(16).reshape(1, 4, 4, 1), 2)[0, 1].tolist()
    [2, 3, 6, 7]
    """
    batch, height, width, channels = images.shape
    if height % size or width % size:
        raise ValueError(f"patches of {size} pixels do not divide images of {height} x {width}")
    split = images.reshape(batch, height // size, size, width // size, size, channels)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


Config = ViTConfig
Model = VisionTransformer
