"""Loops that advance a search until all of its rows are finished.

A search is a function `advance` from one state of the search to the next. `run_together` advances all rows
until the last one is finished. `run_in_stages` finds the same outputs, but soon stops computing rows that are
finished.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tfm.search.state import Hypotheses, State

# A `NamedTuple` whose leaves, except `position`, begin with the axis B. Its fields include
#   rows      int32 [B], the number of each row in the batch of the caller
#   position  int32 scalar, position of the next token
#   finished  the `Hypotheses` so far
#   state     the state of the step function
Progress = Any
# Returns bool [B], True for rows that need another step.
IsUnfinished = Callable[[Progress], jax.Array]
# Computes the next step of all rows. A row may not depend on other rows, and a finished row may not change.
Advance = Callable[[Progress], Progress]
# Returns the `Hypotheses` of all rows, and possibly a trace of the search.
Loop = Callable[[IsUnfinished, Advance, Progress], Any]


def run_together(is_unfinished: IsUnfinished, advance: Advance, progress: Progress) -> Hypotheses:
    """Advances all rows until the last one is finished. See `Loop`."""
    return _run_until_finished(is_unfinished, advance, progress).finished


def run_in_stages(
    is_unfinished: IsUnfinished,
    advance: Advance,
    progress: Progress,
    *,
    steps: int,
    part_size: int,
    short_state: State,
) -> Hypotheses:
    """Advances all rows for a few steps, and then the unfinished rows, `part_size` at a time.

    The first stage ends as soon as at most `part_size` rows are unfinished, or after `steps` steps. Then one
    part usually contains all unfinished rows. Outputs are rarely as long as they may be, so the first stage
    uses a state with space for fewer steps.

    Args:
      is_unfinished, advance, progress: See `Loop`.
      steps: Maximum number of steps of the first stage.
      part_size: Number of rows that are advanced together after the first stage, at most B.
      short_state: The shapes of a state with space for `steps` steps. The state of the search may have more
        zeros at the end of its axes, but must be equal otherwise.
    """
    full_state = progress.state

    def has_many_rows(progress):
        return (is_unfinished(progress).sum() > part_size) & (progress.position < steps)

    def finish_part(progress):
        # If fewer rows are unfinished, copies of the last row, with the number B, fill up the part.
        rows = jnp.nonzero(is_unfinished(progress), size=part_size, fill_value=len(progress.rows))[0]
        part = take_rows(progress, rows)
        part = part._replace(state=resize(part.state, full_state))
        part = _run_until_finished(is_unfinished, advance, part)
        finished = put_rows(progress._replace(state=None), rows, part._replace(state=None))
        return finished._replace(state=progress.state)

    progress = progress._replace(state=resize(full_state, short_state))
    progress = jax.lax.while_loop(has_many_rows, advance, progress)
    return _run_until_finished(is_unfinished, finish_part, progress).finished


def take_rows(tree: Any, rows: jax.Array) -> Any:
    """Returns the rows with the numbers `rows`, int32 [R], of all leaves [B, ...], and scalars unchanged.

    The number B means the last row.
    """
    return jax.tree.map(lambda x: x.at[rows].get(mode="clip") if x.ndim else x, tree)


def put_rows(tree: Any, rows: jax.Array, part: Any) -> Any:
    """Replaces some rows, int32 [R], of all leaves [B, ...] by the rows of `part`. B means no row."""
    return jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop") if x.ndim else x, tree, part)


def resize(tree: Any, like: Any) -> Any:
    """Returns a tree whose leaves [B, ...] have the sizes of `like` except B: cut off, or with more zeros."""

    def resize_leaf(x, like):
        x = x[:, *(slice(size) for size in like.shape[1:])]
        return jnp.pad(x, [(0, 0), *((0, a - b) for a, b in zip(like.shape[1:], x.shape[1:], strict=True))])

    # Without the barrier, XLA would convert the layout of cached keys and values in every step.
    return jax.lax.optimization_barrier(jax.tree.map(resize_leaf, tree, like))


def _run_until_finished(is_unfinished: IsUnfinished, advance: Advance, progress: Progress) -> Progress:
    """Applies `advance` until no row is unfinished."""
    return jax.lax.while_loop(lambda progress: is_unfinished(progress).any(), advance, progress)
