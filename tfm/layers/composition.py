"""Modules whose parts a subclass replaces by overriding a method."""

import inspect
from typing import Any

import flax.linen as nn


class ComposedModule(nn.Module):
    """A module whose methods `make_...` return its parts, so that a subclass replaces one by overriding it.

    Linen makes a module the child of the one whose method is running. These methods are not wrapped for that
    (`nn.nowrap`): what they return is a child of the module that calls them, which may be a part itself.
    """

    def __init_subclass__(cls, **keywords: Any):
        for name, method in vars(cls).items():
            if name.startswith("make_") and inspect.isfunction(method):
                nn.nowrap(method)
        super().__init_subclass__(**keywords)
