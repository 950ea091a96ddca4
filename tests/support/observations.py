"""Observations with random numbers instead of the numbers of a model: of texts, an image and a scene."""

import itertools

import numpy as np

from tfm.interpret.beam import Beam, Extension
from tfm.interpret.observation import AttentionMap, Observation, Prediction, Track, image_track

# Tokens that would break out of the text of a page that does not escape them.
HOSTILE = (
    *("▁</script>", "▁<!--", "▁<script>alert(1)</script>", "▁&amp;", "▁/*style*/", "\u2028", '▁"\\'),
    *("▁🐕", "▁כלב", "</s>"),
)

SOURCE = ("▁The", "▁ani", "mal", "▁is", "▁tired", ".", "</s>")
TARGET = ("▁Das", "▁Tier", "▁ist", "▁mü", "de", ".", "</s>")
WIDE = ("▁The", "▁ani", "mal", "▁is", "▁wide", ".", "</s>")
BREIT = ("▁Das", "▁Tier", "▁ist", "▁breit", ".", "</s>")
KINDS = {"encoder": ("source", "source"), "decoder": ("predicted", "read"), "cross": ("predicted", "source")}
END = "</s>"


def random_weights(seed, shape, *, causal=False):
    """Returns random rows that sum to 1. Causal rows are 0 above the diagonal."""
    weights = np.random.default_rng(seed).random(shape) ** 4 + 1e-4
    weights = np.tril(weights) if causal else weights
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_track(element, labels):
    """Returns the track of the pieces of a text."""
    separate = [label.startswith("<") and label.endswith(">") for label in labels]
    begins = (i == 0 or labels[i].startswith("▁") or separate[i] for i in range(len(labels)))
    words = [number - 1 for number in itertools.accumulate(begins)]
    texts = [
        "".join(label for label, n in zip(labels, words, strict=True) if n == i) for i in range(words[-1] + 1)
    ]
    return Track(element, list(labels), words, [text.removeprefix("▁") for text in texts])


def make_attention(seed, tracks, kinds, layers=2, heads=3):
    """Returns random attention of some kinds."""
    attention = {}
    for i, kind in enumerate(kinds):
        queries, keys = ("patches", "patches") if "patches" in tracks else KINDS[kind]
        shape = (layers, heads, len(tracks[queries].labels), len(tracks[keys].labels))
        weights = random_weights(seed + i, shape, causal=kind == "decoder")
        norms = 7 * np.random.default_rng(seed).random(shape) * weights
        attention[kind] = AttentionMap(queries, keys, weights, norms, 5 * weights.mean(1))
    return attention


def make_observation(seed=0, source=SOURCE, target=TARGET, kinds=tuple(KINDS), beam=True, **sizes):
    """Returns a translation with a beam of two hypotheses, the first of which is the translation."""
    probabilities = 0.5 + 0.5 * np.random.default_rng(seed).random(len(target))
    tracks = {
        "source": make_track("source piece", source),
        "read": make_track("target piece read", ("<s>", *target[:-1])),
        "predicted": make_track("target piece predicted", target),
    }
    return Observation(
        title="".join(source[:-1]).replace("▁", " ").strip(),
        result="".join(target[:-1]).replace("▁", " ").strip(),
        tracks=tracks,
        attention=make_attention(seed, tracks, kinds, **sizes),
        predictions=[
            Prediction(p, [(label, p), ("▁or", 0.5 * (1 - p))])
            for label, p in zip(target, probabilities.tolist(), strict=True)
        ],
        beam=make_beam(target, probabilities) if beam else None,
    )


def make_deep_decoder(seed=0):
    """Returns a translation by a model with an encoder of one layer and a decoder of three."""
    observation = make_observation(seed, layers=3)
    encoder = observation.attention["encoder"]
    arrays = {name: getattr(encoder, name)[:1] for name in ("weights", "norms", "joint_norms")}
    return observation._replace(attention=observation.attention | {"encoder": encoder._replace(**arrays)})


def make_beam(target, probabilities):
    """Returns the beam of the target and of the hypothesis "or", which ends in the second step."""
    logs = np.log(probabilities).cumsum().tolist()
    steps = [
        [Extension(*each, None, 0, True)]
        for each in zip(target[:-1], logs, probabilities.tolist(), strict=False)
    ]
    steps[0].append(Extension("▁or", -2.0, 0.5, None, 0, False))
    steps[1].append(Extension(END, None, None, -3.0, 1, False))
    steps.append([Extension(END, None, None, -0.25, 0, True)])
    return Beam(steps, [(list(target), -0.25), (["▁or", END], -3.0)])


def make_text(seed=0, labels=TARGET):
    """Returns the observation of a text by a language model."""
    observation = make_observation(seed, target=labels, kinds=("decoder",), beam=False)
    tracks = {name: observation.tracks[name] for name in ("read", "predicted")}
    return observation._replace(title=observation.result, result=None, tracks=tracks)


def make_image(seed=0, side=4, pixels=8):
    """Returns the observation of a grey image of side x side patches after a class token."""
    image = 2 * np.random.default_rng(seed).random((pixels, pixels, 1)) - 1
    tracks = {"patches": image_track(image, side**2 + 1)}
    attention = make_attention(seed, tracks, ("encoder",))
    return Observation(
        f"image {seed}", "seven", tracks, attention, [Prediction(0.75, [("seven", 0.75), ("one", 0.25)])]
    )


def make_scene(seed=0):
    """Returns the observation of a detector whose two object queries find a seven and nothing."""
    labels = ["query 1: seven", "query 0: no object"]
    tracks = {
        "places": make_image(seed).tracks["patches"]._replace(grid=(4, 4)),
        "predicted": Track("object query", labels, [0, 1], labels, boxes=[(0.5, 0.25, 1.0, 0.75), None]),
    }
    weights = random_weights(seed, (2, 3, 2, 17))
    predictions = [
        Prediction(0.75, [("seven", 0.75), ("no object", 0.25)]),
        Prediction(1.0, [("no object", 1.0)]),
    ]
    attention = {"cross": AttentionMap("predicted", "places", weights)}
    return Observation(f"scene {seed}", "seven", tracks, attention, predictions)
