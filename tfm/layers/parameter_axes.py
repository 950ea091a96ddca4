"""Names of the axes of parameters and activations, and where a mesh (data, fsdp, tensor) puts them.

A name is declared once, here and beside the modules of `tfm.layers`; only a mesh gives it a meaning, so that
nothing below knows of devices.
"""

import flax.linen as nn

# The end of a parameter's path -> names of its axes. What is not here is on every device as a whole.
_AXES = (
    ("embedding/table", ("vocabulary", None)),
    *((f"{name}_positions/table", ("positions", None)) for name in ("encoder", "decoder")),
    *((f"{name}/kernel", ("model", "heads", "features")) for name in ("query", "key", "value")),
    *((f"{name}/bias", ("heads", "features")) for name in ("query", "key", "value")),
    ("output/kernel", ("heads", "features", "model")),
    ("output/kernel", ("hidden", "model")),
    ("hidden/kernel", ("model", "hidden")),
    ("hidden/bias", ("hidden",)),
)
PARAMETER_RULES = {
    # By rows alone: features looked up in columns would have to change places with the batch.
    "vocabulary": ("tensor", "fsdp"),
    "heads": ("tensor",),
    "hidden": ("tensor",),
    "model": ("fsdp",),
}
ACTIVATION_RULES = (("batch", ("data", "fsdp")),)


def parameter_axes(path, rank):
    """Names of the axes of a parameter, or of optimizer state whose path ends alike; None for each without.

    >>> parameter_axes("decoder/layers_0/feed_forward/hidden/kernel", 2)
    ('model', 'hidden')
    """
    for ending, names in _AXES:
        if path.endswith(ending) and len(names) == rank:
            return names
    return (None,) * rank


def by_batch(x):
    """Keeps an activation [B, ...] divided by its batch axis where a mesh divides it; otherwise x itself."""
    return nn.with_logical_constraint(x, ("batch", *[None] * (x.ndim - 1)))
