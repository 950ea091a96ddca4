"""The files that a task writes before its first step: its tokenizer, and the names of its classes."""

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tfm.data.config import SPLITS, VOCABULARY_FILE, DocumentsConfig, PairsConfig, split_tags
from tfm.data.sources.opening import check_splits, find_problems, open_documents, open_pairs
from tfm.data.sources.sentences import list_sentences
from tfm.data.token_cache import check_folder
from tfm.data.tokenizers.characters import learn_characters
from tfm.data.tokenizers.files import copy_tokenizer, is_own_file, load_tokenizer, load_word_pieces
from tfm.data.tokenizers.learning import RepeatableTexts, learn_word_pieces
from tfm.data.tokenizers.round_trip import check_round_trip
from tfm.devices.memory import check_batches_fit
from tfm.errors import UserError
from tfm.io.files import atomic_file, read_limited
from tfm.training.setup import check_plan, has_checkpoint
from tfm.training.task import Task

LABELS_FILE = "labels.json"  # a list of the names of the classes
MAX_JSON_BYTES = 1 << 28  # of a file of names or words
log = logging.getLogger(__name__)
T = TypeVar("T")


def prepare_tokenizer(config: Any, workdir: str, plan: Callable[[Any], Task], *, new: bool) -> Any:
    """Returns the tokenizer of a run. A new run without a tokenizer makes one after checking its config.

    Args:
      config: config of the run. Its section `data` is a `tfm.data.config.TextSection`.
      workdir: work directory of the run. Its file `VOCABULARY_FILE` has the tokenizer, except for bytes.
      plan: returns the task of a config before it has a tokenizer.
      new: whether to check the memory, the data and the folder of the token cache, and to write the file of
        the tokenizer if it is missing. If the run has a tokenizer or a checkpoint, a test split that cannot
        be used is only a warning. Otherwise it is an error. If False, the function only reads the tokenizer.

    Raises:
      UserError: if `plan` raises, the data or the tokenizer cannot be used (with all problems in the
        message), or the model of a new run does not fit into the memory.
    """
    path = os.path.join(workdir, VOCABULARY_FILE)
    data = config.data
    is_missing = not os.path.exists(path)
    begins = new and is_missing and not has_checkpoint(workdir)
    if begins:
        check_plan(plan(config), config.training)  # first, because learning a tokenizer takes minutes
    if new:
        check_batches_fit(data.batch_tokens)
        check_splits(data, SPLITS if begins else SPLITS[:2])
        check_folder(data.cache)
    if new and not begins:  # a resumed run does not read its test split
        for problem in find_problems(data, ["test"]):
            log.warning("The test split cannot be used: %s", problem)
    if new and is_missing and data.tokenizer != "bytes":
        make_tokenizer(data, path)
    return load_tokenizer(path, data.tokenizer)


def make_tokenizer(data: PairsConfig | DocumentsConfig, path: str) -> None:
    """Copies the user's tokenizer to `path`, or learns a tokenizer from the training split.

    Raises:
      UserError: if the training split or the user's file cannot be used.
    """
    texts = RepeatableTexts(lambda: read_training_texts(data))
    if isinstance(data, PairsConfig):
        symbols = sorted(set(split_tags(data.tags)) - {""})
        write_tokenizer(data, texts, path, normalization=data.normalization, symbols=symbols)
        return
    if data.tokenizer == "word_pieces":
        all_texts, most = texts, data.vocabulary_bytes
        texts = RepeatableTexts(lambda: sample_bytes(all_texts, most))
    write_tokenizer(data, texts, path, has_lines=data.rows != "sentences")


def write_tokenizer(data: Any, texts: Iterable[str], path: str, **options: Any) -> None:
    """Copies the user's tokenizer to `path`, or learns a tokenizer from texts. Logs its kind.

    Args:
      data: has the fields `tokenizer` (any value except "bytes") and `vocabulary_size`.
      texts: the training texts, which are read several times.
      path: path of the file.
      **options: see `learn_word_pieces`.

    Raises:
      UserError: if the texts or the user's file cannot be used.
    """
    log.info("Making a tokenizer (data.tokenizer=%s)", data.tokenizer)
    if is_own_file(data.tokenizer):
        check_round_trip(load_word_pieces(data.tokenizer), texts)
        copy_tokenizer(data.tokenizer, path)
    elif data.tokenizer == "characters":
        learn_characters(texts, path)
    else:
        learn_word_pieces(texts, data.vocabulary_size, path, **options)


def read_training_texts(data: PairsConfig | DocumentsConfig) -> Iterator[str]:
    """Yields the texts of the training split that the tokenizer encodes.

    These are documents, their sentences, or both sides of `vocabulary_pairs` pairs.
    """
    if isinstance(data, PairsConfig):
        return sample_evenly(open_pairs(data, "train"), data.vocabulary_pairs, len(data.text_columns))
    documents = open_documents(data, "train")
    return (text for (text,) in (list_sentences(documents) if data.rows == "sentences" else documents))


def sample_evenly(pairs: Any, most: int, sides: int = 2) -> Iterator[str]:
    """Yields the first `sides` texts of at most `most` rows, spread evenly over the source."""
    stride = -(-len(pairs) // most)
    rows = itertools.islice(pairs, 0, None, stride)
    return itertools.chain.from_iterable(row[:sides] for row in rows)


def sample_bytes(texts: Iterable[str], most: int) -> Iterator[str]:
    """Yields texts of at most `most` bytes in UTF-8, spread evenly. Reads the texts twice.

    Yields all texts if they have no more bytes. Otherwise logs the sizes. A text that is longer than the rest
    of the sample is cut.
    """
    total = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if total <= most:
        yield from texts
        return
    log.info("Learning from %s of %s bytes of the training documents", f"{most:,}", f"{total:,}")
    seen = taken = 0
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        seen += len(content)
        if taken >= most * seen / total:
            continue
        part = content[: most - taken]
        taken += len(part)
        yield text if len(part) == len(content) else part.decode("utf-8", "ignore")


def write_labels(path: str, names: Sequence[str]) -> None:
    """Writes the names of the classes as a JSON list, in which a label is the position of its name."""
    with atomic_file(path, "w") as file:
        json.dump(names, file)


def read_labels(path: str, classes: int) -> tuple[list[str], str]:
    """Returns the names of the classes, and the SHA-256 of their file.

    Raises:
      UserError: if the file is missing, or is not a list of as many texts as the model has classes.
    """
    names, fingerprint = read_json_asset(path, "the names of the classes, a list of texts", _check_names)
    if len(names) != classes:
        raise UserError(
            f"{path} has {len(names):,} classes and the model {classes:,}. Set model.classes to {len(names)}."
        )
    return names, fingerprint


def _check_names(names: Any) -> list[str]:
    """Returns the names of classes. Raises a ValueError if they are no list of texts."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected a list of texts")
    return names


def read_json_asset(path: str, description: str, parse: Callable[[Any], T]) -> tuple[T, str]:
    """Returns what a task has written to a JSON file of its run, and the SHA-256 of the file.

    Args:
      path: the file.
      description: the content of the file, for error messages.
      parse: returns the result for the JSON. Raises a ValueError, TypeError or KeyError for other content.

    Raises:
      UserError: if the file is missing, damaged or too large.
    """
    try:
        content = read_limited(path, MAX_JSON_BYTES)
        return parse(json.loads(content)), hashlib.sha256(content).hexdigest()
    except FileNotFoundError:
        raise UserError(f"Expected {description} in {path}, but the file is missing.") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"Expected {description} in {path}. The file is damaged: copy it again.") from None
