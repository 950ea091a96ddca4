"""StableHLO programs of the whole search of a run. They run without tfm."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import export

from tfm.decoding.parameters import search_parameters
from tfm.decoding.translate import check_lengths, search_batch
from tfm.errors import UserError, install_extra
from tfm.workdir.bundle import flatten, unflatten
from tfm.workdir.runs import Run, single_model_variables

PLATFORMS = ("cpu", "cuda")


def search_program(run: Run, rows: int, length: int) -> export.Exported:
    """Exports the search for batches of one shape, with the decoding config of the run.

    The program runs on every platform of `PLATFORMS`.

    Args:
      run: the run, with a single model.
      rows: number of rows of a batch.
      length: number of tokens in a row of inputs.

    Returns:
      `jax.export.Exported` of (params {flat name: float32}, inputs int32 [rows, length]) ->
      (tokens int32 [rows, T], scores float32 [rows], lengths int32 [rows]), T = length + max_extra_tokens. A
      row of inputs ends in EOS and is padded with 0.

    Raises:
      UserError: if the model's attention exists on a single platform only, if the config decodes with
        samples, or if the model has too few positions for the outputs.
    """
    if run.task.config.model.attention == "cudnn":
        raise UserError("Attention 'cudnn' runs only on CUDA. Export with --config.model.attention=xla.")
    if run.task.config.decoding.samples:
        raise UserError(
            "StableHLO programs contain the search without sampling. Export with --config.decoding.samples=0."
        )
    model, decoding = run.task.model, run.task.config.decoding
    if model.config.attention == "auto":  # it could be a kernel of one platform
        model = model.clone(config=dataclasses.replace(model.config, attention=None))
    check_lengths(model, [length + decoding.max_extra_tokens])

    parameters = {"params": single_model_variables(run)["params"]}

    def translate(params, inputs):
        members = (search_parameters(unflatten(params, parameters)["params"], decoding.dtype),)
        found = search_batch(model, members, inputs, decoding)
        return tuple(x[:, 0] for x in found)

    like = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in flatten(parameters).items()}
    with _no_source_locations():
        program = export.export(jax.jit(translate), platforms=PLATFORMS)
        return program(like, jax.ShapeDtypeStruct((rows, length), jnp.int32))


def serialized(program: export.Exported) -> bytes:
    """Serializes a `jax.export.Exported`. `jax.export.deserialize` reads the bytes.

    Raises:
      UserError: if the package flatbuffers is not installed. JAX needs it to serialize.
    """
    try:
        return bytes(program.serialize())
    except ImportError:
        raise UserError(f"StableHLO needs the package flatbuffers: {install_extra('stablehlo')}.") from None


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Inside, JAX writes no source locations into programs, because they reveal paths of this machine."""
    name = "jax_traceback_in_locations_limit"
    limit = getattr(jax.config, name)
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, limit)
