"""The Transformer of "Attention Is All You Need" in JAX and Flax: train, evaluate, take apart.

`tfm.Translator`, `tfm.Generator` and the modules, such as `tfm.attention`, are imported on first use:
`import tfm` itself is cheap, and touches neither JAX nor a device.
"""

import importlib
import pkgutil

__version__ = "0.1.0"
__all__ = ["Generator", "Translator", "__version__"]


def __getattr__(name):
    if name in ("Generator", "Translator"):
        return getattr(importlib.import_module(f"tfm.workdir.{name.lower()}"), name)
    if name in _modules():
        return importlib.import_module(f"tfm.{name}")
    raise AttributeError(f"module 'tfm' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_modules()})


def _modules():
    return [module.name for module in pkgutil.iter_modules(__path__)]
