"""The trained autoencoder that turns images into codes and back. It is not trained further."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from tfm import models
from tfm.checkpoints.trees import check_shapes
from tfm.config import from_mapping
from tfm.errors import UserError
from tfm.systems.dalle.model import DALLEConfig
from tfm.training.frozen import FrozenModel, read_frozen
from tfm.training.map_batches import map_rows
from tfm.training.task import Batch, Variables

FIELD = "first_stage"  # of the config
BATCH_SIZE = 64  # maximum number of pictures that are encoded or decoded at once


class FirstStage:
    """The autoencoder of a run.

    Args:
      workdir: folder of the run. It contains the autoencoder as a frozen model.
      model: config of the language model of the codes.
      sizes: {field: value} that the config of the autoencoder must have in addition, so that it reads the
        pictures of the run.

    Attributes:
      module: the Linen module.
      variables: its variables.
      fingerprint: SHA-256 of its file.

    Raises:
      UserError: if the run has no autoencoder, or its codes do not fit the language model.
    """

    def __init__(self, workdir: str, model: DALLEConfig, sizes: Mapping[str, int] | None = None):
        frozen = read_frozen(workdir, FIELD)
        self.module = _make_module(frozen, {"codes": model.codes, "side": model.side, **(sizes or {})})
        self.variables: Variables = frozen.variables
        self.fingerprint = frozen.fingerprint

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns the codes of images [N, height, width, C], row by row, int [N, side * side]."""
        return self._map(self._encode, images).reshape(len(images), -1)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Returns the images [N, height, width, C], from -1 to 1, of codes [N, side * side], row by row."""
        side = self.module.config.side
        return self._map(self._decode, codes.reshape(-1, side, side))

    def _map(self, function: Callable[[Variables, Batch], jax.Array], rows: np.ndarray) -> np.ndarray:
        """Applies the encoder or the decoder to batches of rows [N, ...]."""
        return map_rows(function, self.variables, {"rows": rows}, min(len(rows), BATCH_SIZE))

    @functools.partial(jax.jit, static_argnums=0)
    def _encode(self, variables: Variables, batch: Batch) -> jax.Array:
        """Compiles the encoder."""
        codes: Any = self.module.apply(variables, batch["rows"], method="encode")
        return codes

    @functools.partial(jax.jit, static_argnums=0)
    def _decode(self, variables: Variables, batch: Batch) -> jax.Array:
        """Compiles the decoder."""
        images: Any = self.module.apply(variables, batch["rows"], method="decode")
        return images


def _make_module(frozen: FrozenModel, wanted: Mapping[str, int]) -> nn.Module:
    """Returns the module of a frozen autoencoder. Its config must have the values of the fields `wanted`."""
    module = models.find(str(frozen.model.get("name", "")))
    autoencoder: nn.Module = module.Model(from_mapping(module.Config, frozen.model, "config.model"))
    config = autoencoder.config
    for name, expected in wanted.items():
        actual = getattr(config, name, None)
        if actual != expected:
            raise UserError(
                f"Expected the autoencoder in config.{FIELD} to have {name} {expected}, got {actual}. "
                f"Change config.model, or train another autoencoder (task image_tokens)."
            )
    image = np.zeros((1, config.image_size, config.image_size, config.channels), np.float32)
    shapes = jax.eval_shape(lambda: autoencoder.init(jax.random.key(0), image, train=False))
    check_shapes(shapes, frozen.variables, f"The model of config.{FIELD}")
    return autoencoder
