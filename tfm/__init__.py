"""The Transformer of "Attention Is All You Need" in JAX and Flax: train, evaluate, take apart.

`tfm.Translator`, `tfm.Generator`, `tfm.Observer` and the modules, such as `tfm.attention`, are imported on
first use: `import tfm` itself is cheap, and touches neither JAX nor a device.
"""

import importlib
import pkgutil

from tfm import errors

__version__ = "0.1.0"
__all__ = ["Generator", "Observer", "Translator", "__version__"]


def __getattr__(name):
    """Imports a submodule, `Generator`, `Observer` or `Translator` on first use."""
    if name in ("Generator", "Observer", "Translator"):
        errors.check_train_extra(f"tfm.{name}")
        return getattr(importlib.import_module(f"tfm.workdir.{name.lower()}"), name)
    try:
        return importlib.import_module(f"tfm.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"tfm.{name}":
            raise
    raise AttributeError(f"module 'tfm' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *(module.name for module in pkgutil.iter_modules(__path__))})
