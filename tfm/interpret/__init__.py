"""Functions that read and edit the activations of a model, see docs/interpret.md.

All functions are pure, so they can be jitted, differentiated and vmapped. `list_points` lists the names of
the activations. A glob such as "decoder.*.cross_attention.weights" selects several activations. An edit is a
function that maps an activation and its `Point` to a replacement.
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
from tfm.interpret.run import decode, list_points, run, score
from tfm.layers.observe import Edit, Point

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
