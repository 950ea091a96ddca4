"""Parameters that several devices divide, and that each layer gathers while it runs.

Without this, a step would hold all gathered parameters from its forward pass to its backward pass. A layer
gathers its parameters in the forward pass, drops them, and gathers them again in the backward pass.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax

SHARD_AXIS = "fsdp"  # the axis of a mesh over which `jax.shard_map` divides parameters
# Operations that the backward pass repeats. All other results of a layer are kept. A conversion or a
# transposition of a gathered parameter would otherwise be kept in place of the parameter.
REPEATED = frozenset(
    (
        "all_gather",
        "convert_element_type",
        "transpose",
        "reshape",
        "squeeze",
        "broadcast_in_dim",
        "concatenate",
    )
)
_shards: contextvars.ContextVar[Mapping[int, tuple[Any, "Shard"]]] = contextvars.ContextVar(
    "shards",
    default={},  # noqa: B039 (nothing changes it)
)


class Shard(flax.struct.PyTreeNode):
    """The part of a parameter that this device has.

    Attributes:
      value: the part.
      axis: the axis of the parameter that the devices divide.
    """

    value: jax.Array
    axis: int = flax.struct.field(pytree_node=False)

    def gather(self) -> jax.Array:
        """Returns the whole parameter."""
        return jax.lax.all_gather(self.value, SHARD_AXIS, axis=self.axis, tiled=True)


@contextlib.contextmanager
def gather_by_layer(shards: Any) -> Iterator[Any]:
    """Gathers parameters in such a way that a `Stack` inside the context gathers each layer when it runs.

    Args:
      shards: tree with a `Shard` for each parameter that the devices divide.

    Yields:
      The tree with whole parameters. The compiler removes the gathering of those that only layers use.
    """
    whole = gather(shards)
    leaves = zip(jax.tree.leaves(whole), jax.tree.leaves(shards, is_leaf=_is_shard), strict=True)
    # The whole parameter stays alive, so that no other array gets its id.
    token = _shards.set({id(x): (x, shard) for x, shard in leaves if _is_shard(shard)})
    try:
        yield whole
    finally:
        _shards.reset(token)


def gather(tree: Any) -> Any:
    """Returns a tree with whole parameters in place of each `Shard`."""
    return jax.tree.map(lambda x: x.gather() if _is_shard(x) else x, tree, is_leaf=_is_shard)


def find_shards(tree: Any) -> Any:
    """Returns a tree with the `Shard` in place of each parameter that `gather_by_layer` gathered."""
    known = _shards.get()
    return jax.tree.map(lambda x: known[id(x)][1] if id(x) in known else x, tree)


def is_gathering() -> bool:
    """Returns whether the code runs inside `gather_by_layer` with divided parameters."""
    return bool(_shards.get())


def remat(call: Callable[..., Any], everything: bool) -> Callable[..., Any]:
    """Transforms a function of (module, *arrays) into one whose backward pass repeats its operations.

    Args:
      call: the function.
      everything: whether to repeat all operations. If not, only the gathering of parameters is repeated.
    """
    if not is_gathering():
        return nn.remat(call) if everything else call
    gathering = nn.map_variables(call, "params", trans_in_fn=gather)
    repeating = nn.remat(gathering, policy=None if everything else keep_all_but_gathered)
    return nn.map_variables(repeating, "params", trans_in_fn=find_shards)


def keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Returns whether a layer keeps the result of an operation for its backward pass."""
    return primitive.name not in REPEATED


def _is_shard(x: Any) -> bool:
    return isinstance(x, Shard)
