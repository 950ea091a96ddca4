"""Functions that read and edit the activations of a model, see docs/interpret.md.

All of them are pure, so they can be jitted, differentiated and vmapped. Activations have names, which
`list_points` lists. Globs such as "decoder.*.cross_attention.weights" select several. An edit is a function
of an activation and its `Point`.
"""

from tfm.interpret.edited_model import EditedModel
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
from tfm.interpret.recorder import Edit, Point
from tfm.interpret.run import decode, list_points, run, score

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
