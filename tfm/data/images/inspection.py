"""The summary of labelled images for `tfm data`: classes, sizes, modes and repeated pictures."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm.data.config import ImagesConfig
from tfm.data.images.labelled import LabelledPictures
from tfm.data.images.opening import Images, open_images
from tfm.data.inspection import Summary, hash_bytes

CHUNK_IMAGES = 1000  # that are read at a time
MAX_SHOWN_CLASSES = 20
MIN_IMAGES = 5  # of a class; a hint names classes that have fewer
MAX_SHARE = 0.9  # of one class; a hint warns of a larger share


def summarize_images(config: ImagesConfig, split: str) -> Summary:
    """Returns the summary of a split, all of whose images are read.

    Args:
      config: the data section.
      split: "train", "validation", "test", or the name of another split in the data.

    Raises:
      UserError: if the split cannot be used.
    """
    source = open_images(config, split)
    labels, hashes, lines = _read(source)
    counts = Counter(labels.tolist())
    names = source.label_names
    most_common = counts.most_common()
    shown = [f"{names[label]} ({count:,})" for label, count in most_common[:MAX_SHOWN_CLASSES]]
    more = len(most_common) - MAX_SHOWN_CLASSES
    lines = [("classes", ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")), *lines]
    values = {"images": len(labels), "classes": {names[label]: count for label, count in most_common}}
    title = f"{len(labels):,} images of {len(most_common):,} classes"
    return Summary(split, title, lines, values, _find_hints(names, counts), hashes)


def _read(source: Images) -> tuple[np.ndarray, np.ndarray, list[tuple[str, str]]]:
    """Returns the labels and the hashes of all images, and the lines about their sizes and modes."""
    if isinstance(source, LabelledPictures):
        index = source.index
        sizes = [f"{height} x {width}" for height, width in index.sizes.tolist()]
        lines = [("sizes", _count(sizes)), ("modes", _count(index.modes.tolist()))]
        return source.labels, index.hashes, lines
    labels, hashes, shapes = [], [], []
    for start in range(0, len(source), CHUNK_IMAGES):
        images, chunk = source.take(np.arange(start, min(start + CHUNK_IMAGES, len(source))))
        labels.append(chunk)
        hashes += [hash_bytes(image.tobytes()) for image in images]
        shapes += [" x ".join(map(str, images.shape[1:]))] * len(images)
    return np.concatenate(labels), np.array(hashes, np.uint64), [("sizes", _count(shapes))]


def _count(values: Sequence[str]) -> str:
    """Returns the most frequent values with their counts, such as "28 x 28 (60,000)"."""
    counts = Counter(values).most_common()
    shown = ", ".join(f"{value} ({count:,})" for value, count in counts[:5])
    return f"{shown} and {len(counts) - 5:,} others" if len(counts) > 5 else shown


def _find_hints(names: Sequence[str], counts: Counter[Any]) -> list[str]:
    """Returns a sentence for each property of the classes that may be a mistake."""
    hints = []
    total = sum(counts.values())
    missing = [name for label, name in enumerate(names) if not counts[label]]
    rare = [names[label] for label, count in counts.items() if count < MIN_IMAGES]
    label, largest = counts.most_common(1)[0]
    if missing:
        hints.append(f"{len(missing):,} classes have no images, for example {missing[0]}")
    if rare:
        hints.append(f"{len(rare):,} classes have fewer than {MIN_IMAGES} images, for example {rare[0]}")
    if largest > MAX_SHARE * total:
        hints.append(f"{100 * largest / total:.1f} % of the images have the class {names[label]}")
    return hints
