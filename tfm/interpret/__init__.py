"""Reads and changes the activations of a model: docs/interpret.md.

All are pure functions: jit them, differentiate them, vmap them. Points are named, `list_points` gives them;
globs such as "decoder.*.cross_attention.weights" select some. An edit is a function of an activation and its
`Point`.
"""

from tfm.interpret.edited import EditedModel
from tfm.interpret.edits import (
    patch,
    replace_with,
    scale,
    scale_head,
    scale_neuron,
    scale_position,
    zero,
    zero_head,
    zero_neuron,
    zero_position,
)
from tfm.interpret.passes import decode, list_points, run, score
from tfm.layers.activations import Edit, Point

__all__ = [
    "Edit",
    "EditedModel",
    "Point",
    "decode",
    "list_points",
    "patch",
    "replace_with",
    "run",
    "scale",
    "scale_head",
    "scale_neuron",
    "scale_position",
    "score",
    "zero",
    "zero_head",
    "zero_neuron",
    "zero_position",
]
