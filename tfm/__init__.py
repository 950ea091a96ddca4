"""The Transformer of "Attention Is All You Need" in JAX and Flax: train, evaluate, take apart."""

__version__ = "0.1.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name):
    """`tfm.Translator`, imported on first use: `import tfm` itself touches neither JAX nor a device."""
    if name == "Translator":
        from tfm.translator import Translator

        return Translator
    raise AttributeError(f"module 'tfm' has no attribute {name!r}")
