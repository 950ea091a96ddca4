"""The summary of pictures with boxes for `tfm data`: boxes of each class and size, and left-out boxes."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.batches.generated import EVALUATION
from tfm.data.inspection import Summary, check_pictures
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.coco import NO_CATEGORY
from tfm.systems.detr.metrics import SIZES, Truth
from tfm.systems.detr.scenes import Scenes
from tfm.systems.detr.stored_pictures import Source, find_inside, has_area

MAX_SHOWN_CLASSES = 20
log = logging.getLogger(__name__)


def summarize_source(name: str, source: Source, data: BoxedPicturesConfig, classes: int) -> Summary:
    """Reads all pictures of a split and returns its summary.

    Args:
      name: name of the split.
      source: the pictures.
      data: the data section.
      classes: number of classes of the model.
    """
    count = len(source.boxes)
    hashes, unreadable = check_pictures(count, source.read, lambda line: log.info("%s", line))
    hints = [f"{len(unreadable):,} pictures cannot be read. {unreadable[0]}"] if unreadable else []
    hints += _find_outside(source)
    truths = []
    empty = 0
    for index in range(count):
        truth = source.truth(index)
        size = source.sizes[index]
        is_outside = ~find_inside(truth.boxes, size)  # has its own hint
        is_kept = truth.crowds | is_outside | has_area(truth.boxes, size)
        empty += int((~is_kept).sum())
        truths.append(Truth(*(part[is_kept] for part in truth)))
    left_out = {**source.left_out, "boxes without height or width": empty}
    hints += _find_hints(truths, source.label_names, data, classes)
    return _summarize(name, f"{count:,} pictures", truths, source.label_names, left_out, hints, hashes)


def summarize_scenes(name: str, scenes: Scenes) -> Summary:
    """Returns the summary of the evaluated scenes of a generated split."""
    count = scenes.evaluated
    hashes, _ = check_pictures(
        count, lambda index: scenes.make(EVALUATION, index).image, lambda line: log.info("%s", line)
    )
    truths = [scenes.truth(index) for index in range(count)]
    return _summarize(name, f"{count:,} generated pictures", truths, scenes.label_names, {}, [], hashes)


def _summarize(
    name: str,
    title: str,
    truths: Sequence[Truth],
    names: Sequence[str],
    left_out: Mapping[str, int],
    hints: list[str],
    hashes: np.ndarray,
) -> Summary:
    """Returns the summary of the true objects of pictures."""
    labels = Counter(int(label) for truth in truths for label in truth.labels[~truth.crowds])
    by_class: Counter[str] = Counter()
    for label, number in labels.most_common():
        by_class[names[label]] += number  # two ids may have the same name
    areas = np.concatenate([np.zeros(0), *(truth.areas[~truth.crowds] for truth in truths)])
    by_size = {size: int(((areas >= low) & (areas < high)).sum()) for size, (low, high) in SIZES.items()}
    counts = [int((~truth.crowds).sum()) for truth in truths]
    values: dict[str, Any] = {
        "pictures": len(truths),
        "boxes": len(areas),
        "without_boxes": counts.count(0),
        "most_boxes": max(counts, default=0),
        "crowds": sum(int(truth.crowds.sum()) for truth in truths),
        "classes": dict(by_class.most_common()),
        "sizes": by_size,
        "left_out": dict(left_out),
    }
    lines = [
        ("boxes", f"{len(areas):,}, at most {values['most_boxes']:,} in a picture"),
        ("empty", f"{values['without_boxes']:,} pictures have no box"),
        ("crowds", f"{values['crowds']:,} regions with several objects, which are not learned"),
        *(("left out", f"{count:,} {what}") for what, count in left_out.items() if count),
        ("sizes", "by area, as COCO divides them"),
        *((size, f"{count:>12,}") for size, count in by_size.items()),
        ("classes", f"{len(labels):,} of {len(names) - names.count(NO_CATEGORY):,} have boxes"),
        *(("", f"{count:>12,} {each}") for each, count in by_class.most_common(MAX_SHOWN_CLASSES)),
    ]
    if len(by_class) > MAX_SHOWN_CLASSES:
        lines.append(("", f"and {len(by_class) - MAX_SHOWN_CLASSES:,} more classes"))
    return Summary(name, f"{title} with boxes", lines, values, hints, hashes)


def _find_outside(source: Source) -> list[str]:
    """Returns a hint if boxes reach out of their pictures, because training ends with an error then."""
    places = [
        (index, number)
        for index, boxes in enumerate(source.boxes)
        for number in np.flatnonzero(~find_inside(boxes, source.sizes[index])).tolist()
    ]
    if not places:
        return []
    name = source.name_box(*places[0])
    return [f"{len(places):,} boxes are not inside their pictures, for example {name}. Correct them"]


def _find_hints(
    truths: Sequence[Truth], names: Sequence[str], data: BoxedPicturesConfig, classes: int
) -> list[str]:
    """Returns hints about classes without boxes and about fields that are too small."""
    hints = []
    seen = {int(label) for truth in truths for label in truth.labels[~truth.crowds]}
    unseen = [name for label, name in enumerate(names) if label not in seen and name != NO_CATEGORY]
    if unseen:
        shown = ", ".join(unseen[:MAX_SHOWN_CLASSES])
        hints.append(f"classes without a box: {shown}")
    most = max((int((~truth.crowds).sum()) for truth in truths), default=0)
    if most > data.max_objects:
        hints.append(f"set data.max_objects and model.queries to at least {most:,}, the boxes of a picture")
    if classes < len(names):
        hints.append(f"set model.classes to at least {len(names):,}")
    return hints
