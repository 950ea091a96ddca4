"""The Vision Transformer (Dosovitskiy et al. 2021): the encoder of a Transformer over patches of an image.

By default the structure and the initialization of the paper's ViT-B/16: a class token in front of the
patches, learned positions, pre-norm with a final norm, the exact gelu, biases, a head that begins at 0.

Shape letters: B images, P pixels on a side of a patch, N patches of an image, C channels, D model, and the
height and width of images in pixels.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm import layers
from tfm.attention_kernels import IMPLEMENTATIONS
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, NEVER, check_fields, field, field_like
from tfm.layers import activations
from tfm.layers.dense import dense
from tfm.models.transformer import TransformerConfig, check_sizes

POSITION_DEVIATION = 0.02  # of the table of positions, in the authors' code
fixed_field = functools.partial(field, resume=NEVER, warm_start=False)
rate_field = functools.partial(field, least=0, most=0.999)
same_field = functools.partial(field_like, TransformerConfig)


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The paper's ViT-B/16 for ImageNet; each default is the paper's, each deviation a field."""

    name: str = fixed_field("vit", "A module of tfm.models.")
    image_size: int = fixed_field(224, "Height and width of an image.", least=1, most=8192, unit="pixels")
    channels: int = fixed_field(3, "C, of an image: 1 for grey, 3 for colours.", least=1, most=1024)
    patch_size: int = fixed_field(
        16, "P, height and width of a patch; divides image_size.", least=1, most=8192, unit="pixels"
    )
    classes: int = fixed_field(1000, "Classes to tell apart.", least=2, most=10_000_000, unit="classes")
    encoder_layers: int = fixed_field(12, "Layers of the encoder.", least=1, most=1000, unit="layers")
    d_model: int = fixed_field(768, "D, of each patch in every layer.", least=1, most=65_536, unit="features")
    d_ff: int = same_field("d_ff", 3072)
    heads: int = fixed_field(12, "H, of each attention; divides d_model.", least=1, most=1024, unit="heads")
    activation: str = same_field("activation", "gelu")
    layer_norm_epsilon: float = same_field("layer_norm_epsilon", 1e-6)
    dropout: float = rate_field(
        0.1,
        "After each dense layer but those that make queries, keys and values, and after the sum of patches "
        "and positions (appendix B.1).",
    )
    attention_dropout: float = rate_field(0.0, "Of attention weights.")
    attention: str | None = field(
        None,
        "None as the paper writes it, or a fused kernel, which needs attention_dropout 0; cudnn also "
        "bfloat16 and a CUDA device.",
        choices=IMPLEMENTATIONS,
        resume=CHANGEABLE,
    )
    remat: bool = same_field("remat")
    scan: bool = same_field("scan")
    dtype: str = same_field("dtype")
    # What the paper does not vary, for `tfm.layers.TransformerParts`.
    key_features: ClassVar[None] = None
    value_features: ClassVar[None] = None
    key_value_heads: ClassVar[None] = None
    scale_attention: ClassVar[bool] = True
    attention_window: ClassVar[None] = None
    attention_bias: ClassVar[bool] = True
    gated: ClassVar[bool] = False
    norm: ClassVar[str] = "layer_norm"
    norm_order: ClassVar[str] = "pre"
    deep_norm: ClassVar[bool] = False
    positions: ClassVar[str] = "learned"

    def __post_init__(self):
        check_fields(self, "model")
        if self.image_size % self.patch_size:
            raise UserError(
                f"model.patch_size must divide model.image_size {self.image_size}, got {self.patch_size}."
            )
        if self.d_model % self.heads:
            raise UserError(
                f"model.d_model {self.d_model} does not divide into {self.heads} heads: choose another "
                "number of heads."
            )
        check_sizes(self)

    @property
    def feed_forward_dropout(self) -> float:
        """Of the hidden layer, which is a dense layer as others."""
        return self.dropout

    @property
    def patches(self) -> int:
        """N, the patches of an image."""
        return (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class ViTMemory:
    """The `tfm.memory_estimate.MemoryEstimate` of a `VisionTransformer`, by its config."""

    config: ViTConfig

    def count_parameters(self) -> int:
        """The number of parameters, exact."""
        model = self.config
        attention = 4 * (model.d_model + 1) * model.d_model
        feed_forward = 2 * model.d_model * model.d_ff + model.d_ff + model.d_model
        norm = 2 * model.d_model
        embedding = (model.patch_size**2 * model.channels + 1) * model.d_model
        tokens = (model.patches + 2) * model.d_model  # positions, and the class token
        head = (model.d_model + 1) * model.classes
        layers = model.encoder_layers * (attention + feed_forward + 2 * norm)
        return embedding + tokens + layers + norm + head

    def sizes(self) -> dict[str, int]:
        """{config field: value} of what makes the parameters many."""
        names = ("image_size", "patch_size", "classes", "encoder_layers", "d_model", "d_ff")
        return {f"model.{name}": getattr(self.config, name) for name in names}

    def layers(self) -> dict[str, int]:
        """{config field: number of layers}."""
        return {"model.encoder_layers": self.config.encoder_layers}


@layers.declare_axes({"embedding/kernel": ("pixels", "model"), "head/kernel": ("model", "classes")})
class VisionTransformer(layers.TransformerParts):
    """Logits of the classes of images. `config` holds every choice; see `ViTConfig`.

    Each part comes from a method `make_...`, and a subclass replaces it by overriding that, as for
    `tfm.models.Transformer`.
    """

    config: ViTConfig

    def setup(self) -> None:
        config = self.config
        self._check_device()
        self.embedding = self.make_embedding()
        self.class_token = self.param("class_token", nn.initializers.zeros, (config.d_model,))
        self.positions = self.make_positions()
        self.dropout = layers.Dropout(config.dropout)
        self.encoder = self.make_stack(self.make_encoder_layer, config.encoder_layers)
        self.head = self.make_head()

    @property
    def memory_estimate(self) -> ViTMemory:
        """The estimate of the model's memory."""
        return ViTMemory(self.config)

    def make_embedding(self) -> nn.Module:
        """Embeds patches: [..., P * P * C] -> [..., D], E of equation 1."""
        config = self.config
        init = nn.initializers.lecun_normal()  # the authors', of a convolution with the same weights
        return dense(config.d_model, kernel_init=init, dtype=jnp.dtype(config.dtype))

    def make_positions(self) -> Callable[[jax.Array], jax.Array]:
        """What is added to class token and patches: positions 0 to N -> [N + 1, D]."""
        init = nn.initializers.normal(POSITION_DEVIATION)
        return layers.LearnedPositions(self.config.patches + 1, self.config.d_model, init)

    def make_encoder_layer(self) -> nn.Module:
        """One layer of the encoder."""
        return layers.EncoderLayer(self.make_mixer(), self.make_feed_forward(), self.make_residual)

    def make_head(self) -> nn.Module:
        """Logits of the features of an image: [B, D] -> [B, classes]; all 0 at first."""
        zeros = nn.initializers.zeros
        return dense(self.config.classes, kernel_init=zeros, dtype=jnp.dtype(self.config.dtype))

    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Images [B, height, width, C] -> logits [B, classes] in the compute dtype.

        Raises:
          ValueError: images of another shape than the config's.
        """
        return activations.observe(self, "logits", self.head(self.features(images, train=train)), "BV")

    def features(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Images [B, height, width, C] -> the encoder's output at the class token, [B, D] (equation 4)."""
        config = self.config
        expected = (config.image_size, config.image_size, config.channels)
        if images.shape[1:] != expected:
            raise ValueError(f"expected images of shape {expected}, got {images.shape[1:]}")
        x = self.embedding(split_patches(images, config.patch_size).astype(config.dtype))
        first = jnp.broadcast_to(self.class_token.astype(config.dtype), (len(x), 1, config.d_model))
        x = jnp.concatenate([first, x], axis=1)
        index = jnp.arange(config.patches + 1)
        x = self._add_positions("encoder", x, self.positions, index, train=train)
        return self.encoder(x, mask=None, positions=index, train=train)[:, 0]


def split_patches(images: jax.Array, size: int) -> jax.Array:
    """Images [B, height, width, C] -> patches [B, N, size * size * C], row by row, pixels row by row.

    Raises:
      ValueError: `size` does not divide height and width.

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
