"""Export of a run for other projects: Hugging Face transformers, CTranslate2, and what systems add."""

import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfm import __version__
from tfm.data.config import SOURCE_VOCABULARY_FILE, VOCABULARY_FILE, PairsConfig, begin_with
from tfm.data.tokenizers.characters import BYTES, FIRST_BYTE
from tfm.data.tokenizers.file_tokenizer import ADDED_TOKENS
from tfm.data.tokenizers.protocol import (
    BOS_ID,
    EOS_ID,
    PieceTokenizer,
    has_separate_source,
    source_tokenizer,
)
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.export import ctranslate2
from tfm.export.formats import find_exporters
from tfm.export.to_huggingface import write_model
from tfm.export.write import check_absent
from tfm.huggingface.lookup import find_targets
from tfm.huggingface.tokenizer_file import find_free_name
from tfm.io.files import atomic_folder, writing
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.workdir import runs
from tfm.workdir.bundle import CARD_FILE, flatten

CARD = """\
# {title}

Exported by tfm {version} from step {steps}.{prefixes}

```python
{example}
```
{note}
"""
LENGTH_PENALTY = """
tfm divides the score of a hypothesis by ((5 + length) / 6) ** length_penalty, but {project} divides it by
length ** length_penalty. With a value other than 0, the best hypotheses can differ. The value in tfm was
{value} with a beam of {beam}.
"""
CTRANSLATE2_TRANSLATE = """\
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor("FOLDER/{source}")
target = sentencepiece.SentencePieceProcessor("FOLDER/{target}")
translator = ctranslate2.Translator("FOLDER")
results = translator.translate_batch(source.encode(["{text}"], out_type=str), length_penalty=0.0)
print([target.decode(result.hypotheses[0]) for result in results])"""
CTRANSLATE2_TRANSLATE_AFTER_PREFIX = """\
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor("FOLDER/{source}")
target = sentencepiece.SentencePieceProcessor("FOLDER/{target}")
translator = ctranslate2.Translator("FOLDER")
prefix = target.encode("{prefix}", out_type=str)
results = translator.translate_batch(
    source.encode(["{text}"], out_type=str), target_prefix=[prefix], length_penalty=0.0
)
print([target.decode(result.hypotheses[0][len(prefix) :]) for result in results])"""
CTRANSLATE2_TRANSLATE_TOKENS = """\
import ctranslate2

translator = ctranslate2.Translator("FOLDER")  # of tokens, the texts of its vocabulary
results = translator.translate_batch([["...", "..."]], length_penalty=0.0)"""
GENERATE = """\
import ctranslate2

generator = ctranslate2.Generator("FOLDER")  # of tokens, the texts in vocabulary.json
results = generator.generate_batch([["{bos}"]], max_length=100)"""


def write_foreign(run: runs.Run, folder: str, *, workdir: str, format: str, quantization: str) -> None:
    """Writes a run in the format of another project. After an error, no partial folder remains.

    Args:
      run: the run, with a single model.
      folder: the folder to write. It must be empty or not exist.
      workdir: the folder of the run, with its assets.
      format: "huggingface", "ctranslate2", or a format of `find_exporters`.
      quantization: data type of the parameters in CTranslate2.

    Raises:
      UserError: if the format cannot express the run, or `folder` is not empty or cannot be written.
    """
    check_absent(folder)
    variables = flatten(runs.single_model_variables(run))
    params = {name: np.array(x) for name, x in variables.items()}
    example = ""
    with writing(folder), atomic_folder(os.path.realpath(folder)) as temporary:
        if format == "huggingface":
            write_model(run, params, workdir, temporary)
        elif format == "ctranslate2":
            for name in run.task.assets():
                shutil.copyfile(os.path.join(workdir, name), os.path.join(temporary, name))
            model = run.task.config.model
            ctranslate2.check_model(model, params)  # rejects models without tokens
            ctranslate2.write_model(model, params, list_vocabularies(run.task), temporary, quantization)
        else:
            example = find_exporters()[format](run.task, params, temporary)
        with open(os.path.join(temporary, CARD_FILE), "w", encoding="utf-8") as file:
            file.write(make_card(run, format, example))


def list_vocabularies(task: Any) -> list[list[str]]:
    """Returns the text of each id, for the source and the target of a translation or for a language model.

    Bytes have names such as "<0x41>". All texts of a list differ.
    """
    tokenizer = task.tokenizer
    if isinstance(task, TextTranslation):
        return [_list_distinct_pieces(side) for side in (source_tokenizer(tokenizer), tokenizer)]
    if isinstance(tokenizer, PieceTokenizer):
        return [_list_distinct_pieces(tokenizer)]
    characters = [tokenizer.decode([i]) for i in range(FIRST_BYTE + BYTES, len(tokenizer))]
    return [[*ADDED_TOKENS, *(f"<0x{byte:02X}>" for byte in range(BYTES)), *characters]]


def _list_distinct_pieces(tokenizer: PieceTokenizer) -> list[str]:
    """Returns a different text for each id: its piece, or another name if it has none or shares it.

    A special token that tfm added to the vocabulary may have the name of an ordinary piece. The ordinary
    piece keeps its name, because texts contain it.
    """
    pieces = tokenizer.pieces(range(len(tokenizer)))
    ids: dict[str, int] = {}
    for i in [*range(EOS_ID + 1, len(pieces)), *range(EOS_ID + 1)]:
        ids.setdefault(pieces[i], i)
    names = []
    for i, piece in enumerate(pieces):
        name = piece
        if not piece or ids[piece] != i:
            name = find_free_name(f"<unused {i}>", ids)
        names.append(name)
    return names


def make_card(run: runs.Run, format: str, example: str = "") -> str:
    """Returns the model card: how to load the folder, and how its search differs from the search of tfm.

    Args:
      run: the run.
      format: see `write_foreign`.
      example: Python code that loads the folder, for a format that a system adds.
    """
    settings = run.task.config
    translates = isinstance(run.task, TextTranslation)
    note = ""
    if translates:
        project = "transformers" if format == "huggingface" else "CTranslate2"
        decoding = settings.decoding
        note = LENGTH_PENALTY.format(project=project, value=decoding.length_penalty, beam=decoding.beam_size)
    if format == "huggingface":
        example = find_targets()[settings.model.name].example(settings.model)
    elif format == "ctranslate2" and not translates:
        example = GENERATE.format(bos=list_vocabularies(run.task)[0][BOS_ID])
    elif format == "ctranslate2" and not isinstance(run.task.tokenizer, WordPieces):
        example = CTRANSLATE2_TRANSLATE_TOKENS
    elif format == "ctranslate2":
        example = _write_ctranslate2_example(settings.data, has_separate_source(run.task.tokenizer))
    return CARD.format(
        title=f"A model of the task {settings.task}",
        version=__version__,
        steps=", ".join(map(str, run.steps)),
        prefixes=_describe_prefixes(settings.data) if translates else "",
        example=example,
        note=note,
    )


def _write_ctranslate2_example(data: PairsConfig, has_source_file: bool) -> str:
    """Returns the code that translates with the SentencePiece models of a folder.

    Args:
      data: the prefixes of sources and targets.
      has_source_file: whether sources have their own SentencePiece model.
    """
    template = CTRANSLATE2_TRANSLATE_AFTER_PREFIX if data.target_prefix else CTRANSLATE2_TRANSLATE
    return template.format(
        source=SOURCE_VOCABULARY_FILE if has_source_file else VOCABULARY_FILE,
        target=VOCABULARY_FILE,
        text=begin_with(data.source_prefix, "..."),
        prefix=data.target_prefix,
    )


def _describe_prefixes(data: PairsConfig) -> str:
    """Returns which texts sources and targets must begin with."""
    prefixes: Sequence[tuple[str, str]] = (("source", data.source_prefix), ("target", data.target_prefix))
    parts = [f"Begin each {side} with `{prefix}`." for side, prefix in prefixes if prefix]
    return " ".join(["", *parts])
