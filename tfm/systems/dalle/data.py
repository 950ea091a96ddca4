"""Opens the pictures with captions of a run, and makes the tokenizer of its captions."""

import os
from typing import NamedTuple

from tfm.data.batches.generated import GeneratedData
from tfm.data.config import VOCABULARY_FILE
from tfm.data.data_errors import collect, raise_all
from tfm.data.sources.splits import list_splits
from tfm.data.tokenizers.files import load_tokenizer, plan_size
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.devices.rows import this_host
from tfm.errors import UserError
from tfm.systems.dalle.caption_text import TokenText
from tfm.systems.dalle.captioned_pictures import CaptionedPictures
from tfm.systems.dalle.captions import CaptionedDigits, CaptionsConfig
from tfm.systems.dalle.stored_captions import find_captions
from tfm.training.assets import write_tokenizer

Pictures = CaptionedDigits | CaptionedPictures


class PictureForm(NamedTuple):
    """The form in which a model reads pictures and captions.

    Attributes:
      size: height and width of a picture.
      channels: 1 or 3.
      text: encodes the captions, or None if the model reads only pictures.
    """

    size: int
    channels: int
    text: TokenText | None = None


def open_pictures(data: CaptionsConfig, split: str, form: PictureForm) -> Pictures:
    """Opens a split.

    Raises:
      UserError: if the data are missing or unusable.
    """
    if data.kind == "digits":
        return CaptionedDigits(split)
    return CaptionedPictures(data, find_captions(data, split), **form._asdict())


def identify_split(data: CaptionsConfig, split: str) -> str:
    """Returns the fingerprint of the content of a split.

    Raises:
      UserError: if the data are missing or unusable.
    """
    if data.kind == "digits":
        return CaptionedDigits(split).fingerprint
    return find_captions(data, split).fingerprint


def open_captions(data: CaptionsConfig, seed: int, form: PictureForm) -> GeneratedData:
    """Opens the training and validation pictures of a run, and checks the test pictures if they exist.

    Raises:
      UserError: if splits are missing or unusable. The message lists the problems of all splits.
    """
    splits: dict[str, Pictures] = {}
    problems: list[str] = []
    named = ["train", "validation"] if data.kind == "digits" else list_splits(data, find_captions)
    for split in named:
        with collect(problems):
            splits[split] = open_pictures(data, split, form)
    raise_all(problems)
    what = "new pictures of two coloured digits"
    if data.kind != "digits":
        what = f"of {splits['train'].size:,} pictures"
    return GeneratedData(
        splits["train"],
        splits["validation"],
        batch_size=data.batch_size,
        seed=seed,
        hosts=this_host(),
        description=f"{data.batch_size:,} {what} in each batch",
    )


def count_evaluated(data: CaptionsConfig, pictures: Pictures) -> int:
    """Returns the number of pictures of a validation or test split that are evaluated."""
    return data.evaluated if pictures.size is None else min(data.evaluated, pictures.size)


def prepare_caption_tokenizer(
    data: CaptionsConfig, workdir: str, *, text_vocabulary: int, text_length: int, new: bool
) -> Tokenizer:
    """Returns the tokenizer of a run. A new run makes it from the captions of the training split.

    Args:
      data: the data section.
      workdir: folder of the run.
      text_vocabulary: number of tokens of texts that the model knows.
      text_length: tokens of a caption, and the number of different padding tokens.
      new: makes the tokenizer if it is missing.

    Raises:
      UserError: if the captions cannot be used, or the model knows too few tokens.
    """
    path = os.path.join(workdir, VOCABULARY_FILE)
    if new and not os.path.exists(path):
        _check_vocabulary(plan_size(data), text_vocabulary, text_length)
        if data.tokenizer != "bytes":
            captions = find_captions(data, "train").captions
            os.makedirs(workdir, exist_ok=True)
            write_tokenizer(data, [text for group in captions for text in group], path)
    tokenizer = load_tokenizer(path, data.tokenizer)
    _check_vocabulary(len(tokenizer), text_vocabulary, text_length)
    return tokenizer


def _check_vocabulary(tokens: int, text_vocabulary: int, text_length: int) -> None:
    """Raises a UserError if a model knows fewer tokens than a tokenizer and its padding have."""
    if text_vocabulary < tokens + text_length:
        raise UserError(
            f"Expected model.text_vocabulary to be at least {tokens + text_length:,}, got "
            f"{text_vocabulary:,}. The tokenizer has {tokens:,} tokens, and each of the {text_length:,} "
            "places of a caption (model.text_length) has its own padding token."
        )
