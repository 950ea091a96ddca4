"""Import of the folder of a Hugging Face model as an export of tfm."""

import dataclasses
import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.config import begin_with
from tfm.errors import UserError
from tfm.export.importing import Arrays, write_import
from tfm.export.write import check_absent
from tfm.huggingface.arrays import Entry, TokenOrder, convert, permute_features, sines_first
from tfm.huggingface.families import SINUSOIDS
from tfm.huggingface.family import Family
from tfm.huggingface.fields import TWO_LABELS, Fields
from tfm.huggingface.folder import CONFIG_FILE, Weights, read_json
from tfm.huggingface.lookup import find_families
from tfm.huggingface.vocabulary import Languages, Vocabulary
from tfm.layers.position_terms import SINUSOIDAL_POSITIONS
from tfm.positions import sinusoidal_encoding
from tfm.training.assets import LABELS_FILE
from tfm.workdir.bundle import check_sizes

COPY_TOLERANCE = 1e-3  # of parameters that files store twice, in float16
SINUSOID_TOLERANCE = 2**-8  # of constants that files store in bfloat16


def import_folder(
    folder: str, output: str, *, languages: Languages | None = None, source_prefix: str = ""
) -> None:
    """Writes a model of Hugging Face transformers as an export. Nothing of the folder is executed.

    Args:
      folder: folder with config.json, safetensors and the files of the tokenizer.
      output: folder to write. It must be empty or not exist. After an error, it is not written.
      languages: source and target for models of many languages.
      source_prefix: text before each source text, such as the task of T5. It follows the prefix that the
        tokenizer needs, such as the tag of a language.

    Raises:
      UserError: if the family, a field, a file or an array is not supported, the model does not translate but
        languages or a prefix are given, or `output` cannot be written.
    """
    languages = languages or Languages()
    check_absent(output)
    path = os.path.join(folder, CONFIG_FILE)
    values = read_json(path)
    name = values.get("model_type")
    families = find_families()
    family = families.get(name) if isinstance(name, str) else None
    if family is None:
        raise UserError(f"{path}: expected model_type to be one of {', '.join(families)}, got {name!r}.")
    if not family.translates and (languages != Languages() or source_prefix):
        raise UserError(
            f"--source_language, --target_language and --source_prefix have no effect on {folder}, because "
            f"models of the family {name} do not translate. Leave them out."
        )
    weights = Weights(folder, family.prefix)
    fields = Fields(values, path, weights, weights.shapes)
    model = family.model(fields)
    check_sizes(model, {name: ("F32", shape) for name, shape in weights.shapes.items()}, folder)
    files: dict[str, bytes] = {}
    if family.has_labels(model):
        files[LABELS_FILE] = json.dumps(_read_labels(fields, model.classes)).encode("utf-8")
    vocabulary = None
    if family.read_vocabulary is not None:
        vocabulary = family.read_vocabulary(folder, fields, languages)
        if source_prefix:
            prefix = begin_with(vocabulary.source_prefix, source_prefix)
            vocabulary = dataclasses.replace(vocabulary, source_prefix=prefix)
    write_model(family, model, fields, weights, vocabulary, output, files=files)


def write_model(
    family: Family,
    model: Any,
    fields: Fields,
    weights: Weights,
    vocabulary: Vocabulary | None,
    output: str,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a model as an export.

    Args:
      family, model, fields, weights: see `to_parameters`.
      vocabulary: the tokenizer, or None for a model without tokens.
      output: the folder to write.
      files: {name of an asset: content}, in addition to the files of the tokenizer.

    Raises:
      UserError: if the arrays do not fit, or `output` cannot be written.
    """
    config = family.make_config(model, vocabulary)
    files = {**(files or {}), **(vocabulary.files if vocabulary else {})}

    def make_arrays(expected: Arrays) -> Arrays:
        shapes = {name: x.shape for name, x in expected.items()}
        order = None if vocabulary is None else vocabulary.order
        parameters = to_parameters(family, model, fields, weights, shapes, order)
        if family.finish is not None:
            family.finish(weights.folder, model, parameters)
        return parameters

    write_import(config, make_arrays, output, assets=files)


def to_parameters(
    family: Family,
    model: Any,
    fields: Fields,
    weights: Weights,
    shapes: Mapping[str, Sequence[int]],
    order: TokenOrder | None,
) -> dict[str, np.ndarray]:
    """Returns {name in an export: array} of all parameters.

    Args:
      family, model, fields: the family, the config of the model in tfm, and the fields of config.json.
      weights: the arrays of the folder.
      shapes: {name in an export: shape}.
      order: order of the tokens, or None for a model without tokens.

    Raises:
      UserError: if an array is missing, left over or does not have the shape that config.json implies.
    """
    entries = _replace_missing(family, list(family.entries(model, fields)), weights)
    missing = sorted({entry.theirs for entry in entries if not entry.optional} - {"", *weights})
    if missing:
        raise UserError(
            f"{weights.folder} has no array {missing[0]} ({len(missing):,} missing). Copy the whole folder."
        )
    _check_unused(family, model, entries, weights)
    if order is not None:
        _check_rows(entries, weights, order)
    try:
        ours = convert(entries, weights, shapes, order)
    except ValueError as error:
        raise UserError(f"{weights.folder}: {error}. Copy the whole folder again.") from None
    if not family.sines_first:
        return ours
    features = np.argsort(sines_first(model.d_model))
    return {name: permute_features(name, x, features) for name, x in ours.items()}


def _replace_missing(family: Family, entries: Sequence[Entry], weights: Weights) -> list[Entry]:
    """Returns the entries with a copy in place of each array that the files lack.

    Libraries store only one of several names of a tied array. safetensors keeps the first in the alphabet.
    """
    used = {entry.theirs for entry in entries}
    copies: dict[str, str] = {}
    for entry in entries:
        names = [name for name, ours in family.copies.items() if ours == entry.ours]
        present = [name for name in names if name in weights and name not in used]
        if entry.theirs and entry.theirs not in weights and present:
            copies[entry.theirs] = present[0]
    return [entry._replace(theirs=copies.get(entry.theirs, entry.theirs)) for entry in entries]


def _check_unused(family: Family, model: Any, entries: Sequence[Entry], weights: Weights) -> None:
    """Raises a UserError if an array that no entry reads is not a copy, a sinusoid or unused."""
    used = {entry.theirs for entry in entries}
    sources = {entry.ours: entry.theirs for entry in entries}
    for name in sorted(set(weights) - used):
        if family.unused.fullmatch(name):
            continue
        original = sources.get(family.copies.get(name, ""))
        if original is None and not (SINUSOIDS.fullmatch(name) and model.positions in SINUSOIDAL_POSITIONS):
            raise UserError(
                f"{weights.folder} has the array {name}, but the model of tfm does not. Check model_type."
            )
        expected = weights[original] if original else _sinusoids(model, len(weights[name]))
        tolerance = COPY_TOLERANCE if original else SINUSOID_TOLERANCE
        if weights[name].shape != expected.shape or np.abs(weights[name] - expected).max() > tolerance:
            content = f"a copy of {original}" if original else "sinusoids"
            raise UserError(
                f"{weights.folder}: expected {name} to be {content}, but its values differ. tfm has no such "
                "model."
            )


def _sinusoids(model: Any, length: int) -> np.ndarray:
    """Returns the table of sinusoids that a file has for the positions of a model."""
    layout = SINUSOIDAL_POSITIONS[model.positions]
    table = np.array(sinusoidal_encoding(np.arange(length), model.d_model, layout=layout))
    if layout == "interleaved":
        return table[:, sines_first(model.d_model)]
    table[1] = 0.0  # padding
    return table


def _check_rows(entries: Sequence[Entry], weights: Weights, order: TokenOrder) -> None:
    """Raises a UserError if the largest table does not have `vocab_size` rows."""
    rows = max(
        weights.shapes[entry.theirs][0]
        for entry in entries
        if entry.layout == "tokens" and entry.ours != "embedding/bias"
    )
    if rows != order.size:
        raise UserError(
            f"Expected the tables of {weights.folder} to have the {order.size:,} rows of vocab_size, got "
            f"{rows:,}. Copy the whole folder."
        )


def _read_labels(fields: Fields, classes: int) -> list[str]:
    """Returns the names of the classes."""
    names = fields.get("id2label", dict, TWO_LABELS)
    try:
        return [str(names[str(i)]) for i in range(classes)]
    except KeyError:
        raise UserError(
            f"{fields.path}: expected id2label to name the classes 0 to {classes - 1}, got "
            f"{reprlib.repr(names)}."
        ) from None
