"""The rows of the paper's Table 3 as variants of its base model, with the published scores."""

from collections.abc import Iterator
from typing import Any

from tfm.sweep.variants import Variant

BIG_STEPS = 3  # big trains 3 times as many steps as base: 300,000 instead of 100,000


def table3(*, width_divisor: int = 1, depth_divisor: int = 1, steps: int = 100_000) -> Iterator[Variant]:
    """Yields the rows of Table 3 (section 6.2), with base first and big last.

    The published perplexity (per word piece) and BLEU are for newstest2013. For smaller models, widths and
    depths can be divided. Heads and rates do not change, and each row keeps its name with the numbers of the
    paper. Fields that a row does not set come from the config.

    Args:
      width_divisor: divisor of d_model, d_ff, and the key features of each head.
      depth_divisor: divisor of the number of layers.
      steps: training steps of base. big trains three times as many.
    """
    for name, overrides, perplexity, bleu, millions in _rows(width_divisor, depth_divisor, steps):
        published = {"perplexity": perplexity, "BLEU": bleu}
        if millions:
            published["parameters"] = 1e6 * millions
        yield Variant(name, overrides, published)


def _rows(divisor: int, depth_divisor: int, steps: int) -> Iterator[tuple[Any, ...]]:
    """Yields (name, overrides, perplexity, BLEU, millions of parameters or None if the table omits them)."""
    yield "base", {}, 4.92, 25.8, 65
    for heads, *scores in ((1, 5.29, 24.9), (4, 5.00, 25.5), (16, 4.91, 25.8), (32, 5.01, 25.4)):
        yield f"A-h{heads}", {"model.heads": heads}, *scores, None  # D / H features of each head
    for features, *scores in ((16, 5.16, 25.1, 58), (32, 5.01, 25.4, 60)):
        yield f"B-dk{features}", {"model.key_features": features // divisor}, *scores
    for layers, *scores in ((2, 6.11, 23.7, 36), (4, 5.19, 25.3, 50), (8, 4.88, 25.5, 80)):
        depth = layers // depth_divisor
        yield f"C-N{layers}", {"model.encoder_layers": depth, "model.decoder_layers": depth}, *scores
    for features, *scores in ((256, 5.75, 24.5, 28), (1024, 4.66, 26.0, 168)):
        yield f"C-d{features}", {"model.d_model": features // divisor}, *scores
    for features, *scores in ((1024, 5.12, 25.4, 53), (4096, 4.75, 26.2, 90)):
        yield f"C-dff{features}", {"model.d_ff": features // divisor}, *scores
    for rate, *scores in ((0.0, 5.77, 24.6), (0.2, 4.95, 25.5)):
        yield f"D-dropout{rate}", {"model.dropout": rate}, *scores, None
    for rate, *scores in ((0.0, 4.67, 25.3), (0.2, 5.47, 25.7)):
        yield f"D-smoothing{rate}", {"label_smoothing": rate}, *scores, None
    yield "E-learned", {"model.positions": "learned"}, 4.92, 25.7, None
    big = {
        "model.d_model": 1024 // divisor,
        "model.d_ff": 4096 // divisor,
        "model.heads": 16,
        "model.dropout": 0.3,
        "training.steps": BIG_STEPS * steps,
    }
    yield "big", big, 4.33, 26.4, 213
