"""Small pictures with captions, in the forms that DALL-E reads."""

import json

import numpy as np
from PIL import Image

from tfm.systems.dalle.captions import CaptionsConfig

SPLITS = {"train": 9, "validation": 4, "test": 5}  # pictures
COLOURS = ("red", "green", "blue")


def write_pictures(folder, count):
    """Writes pictures of one colour and of different shapes. Returns their names and captions."""
    folder.mkdir(parents=True)
    captions = {}
    for index in range(count):
        pixels = np.zeros((10 + index, 20, 3), np.uint8)
        pixels[..., index % 3] = 255 - index
        Image.fromarray(pixels).save(folder / f"{index}.png")
        captions[f"{index}.png"] = [f"a {COLOURS[index % 3]} picture", f"number {index}"][: 1 + index % 2]
    return captions


def write_split(folder, kind, split, count):
    """Writes the pictures of a split, and their captions in the form of a kind of data."""
    pictures = folder / split
    captions = write_pictures(pictures, count)
    rows = [(name, text) for name, texts in captions.items() for text in texts]
    if kind == "table":
        lines = [json.dumps({"file_name": name, "text": text}) for name, text in rows]
        (pictures / "metadata.jsonl").write_text("\n".join(lines))
    if kind == "txt":
        for name, texts in captions.items():
            (pictures / name).with_suffix(".txt").write_text("\n".join(texts))
    if kind == "coco":
        (folder / "annotations").mkdir(exist_ok=True)
        images = [
            {"id": index, "file_name": name, "height": 10 + index, "width": 20}
            for index, name in enumerate(captions)
        ]
        annotations = [{"image_id": int(name[:-4]), "id": 7, "caption": text} for name, text in rows]
        content = {"images": images, "annotations": annotations}
        (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(content))


def write_captions(folder, kind="table", **fields):
    """Writes three splits of pictures with captions. Some have two captions. Returns the data section."""
    for split, count in SPLITS.items():
        write_split(folder, kind, split, count)
    options = {"tokenizer": "characters", "batch_size": 4, "evaluated": 5} | fields
    return CaptionsConfig(kind=kind, directory=str(folder), **options)
