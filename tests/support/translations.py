"""Translations as `tfm.visualize.translation.examine` gives them, of random numbers in place of a model's."""

import numpy as np

from tfm.visualize.translation import Extension, Translated

# Tokens that would leave their place in a page that does not escape them.
HOSTILE = (
    *("▁</script>", "▁<!--", "▁<script>alert(1)</script>", "▁&amp;", "▁/*style*/", "\u2028", '▁"\\'),
    *("▁🐕", "▁כלב", "</s>"),
)

SOURCE = ("▁The", "▁ani", "mal", "▁is", "▁tired", ".", "</s>")
TARGET = ("▁Das", "▁Tier", "▁ist", "▁mü", "de", ".", "</s>")
PARTS = ("encoder", "decoder", "cross")
END = "</s>"


def random_weights(seed, shape, *, causal=False):
    """Rows that sum to 1; causal ones are 0 above the diagonal."""
    weights = np.random.default_rng(seed).random(shape) ** 4 + 1e-4
    weights = np.tril(weights) if causal else weights
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_translated(
    seed=0, source=SOURCE, target=TARGET, layers=2, heads=3, parts=("encoder", "decoder", "cross")
):
    """A `Translated` of these pieces: a beam of two hypotheses, the first of which is the translation."""
    rng, sizes = np.random.default_rng(seed), {"source": len(source), "target": len(target)}
    sides = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
    vocabulary = sorted({*source, *target, "▁or"})
    probabilities = 0.5 + 0.5 * rng.random(len(target))
    weights = {
        part: random_weights(
            seed + i, (layers, heads, *(sizes[side] for side in sides[part])), causal=part == "decoder"
        )
        for i, part in enumerate(parts)
    }
    return Translated(
        sentence="".join(source[:-1]).replace("▁", " ").strip(),
        translation="".join(target[:-1]).replace("▁", " ").strip(),
        weights=weights,
        norms={part: 7 * rng.random(each.shape) * each for part, each in weights.items()},
        joint_norms={part: 5 * each.mean(1) for part, each in weights.items()},
        source=list(source),
        read=["<s>", *target[:-1]],
        predicted=list(target),
        probabilities=probabilities,
        choices=[
            [(piece, p), ("▁or", 0.5 * (1 - p))] for piece, p in zip(target, probabilities, strict=True)
        ],
        beam=make_beam(target, probabilities, vocabulary),
        finished=[(list(target), -0.25), (["▁or", END], -3.0)],
        pieces=lambda ids: [vocabulary[i] for i in ids],
    )


def make_beam(target, probabilities, vocabulary):
    """The target, and beside it "or", which ends in the second step."""
    logs = np.log(probabilities).cumsum()
    steps = [
        [Extension(vocabulary.index(piece), float(log), None, 0, True)]
        for piece, log in zip(target[:-1], logs, strict=False)
    ]
    steps[0].append(Extension(vocabulary.index("▁or"), -2.0, None, 0, False))
    steps[1].append(Extension(vocabulary.index(END), None, -3.0, 1, False))
    return [*steps, [Extension(vocabulary.index(END), None, -0.25, 0, True)]]
