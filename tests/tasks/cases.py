"""Tiny configs of every task with every model that the task trains."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.support import images, labelled_texts, tiny, tiny_lm, tiny_trees
from tfm.data.batches.masked import SentencesConfig
from tfm.data.config import ImagesConfig
from tfm.models.compressed_lm import CompressedLMConfig
from tfm.models.conv_s2s import ConvS2SConfig
from tfm.models.rnn_luong import LuongConfig
from tfm.models.rnn_seq2seq import RNNConfig
from tfm.models.universal import UniversalConfig
from tfm.tasks import classification, masked_language_modeling, summarization

RNN_SIZES = {
    "layers": 1,
    "embedding_features": 12,
    "hidden_features": 10,
    "attention_features": 8,
    "output_features": 12,
    "initialization": "glorot",
    "dropout": 0.1,
}


def make_translation(model: Any, folder: pathlib.Path) -> Any:
    """Writes sentence pairs, with 20 in the split "test", and returns the config."""
    tiny.write_corpus(folder)
    return dataclasses.replace(tiny.make_config(folder), model=model)


def make_classification(model: Any, folder: pathlib.Path) -> Any:
    """Writes images, with 5 in the split "test", and returns the config."""
    images.write_arrays(folder / "images.npz", {"train": 13, "validation": 7, "test": 5})
    data = ImagesConfig(kind="arrays", file=str(folder / "images.npz"), batch_size=4, max_shift=1, flip=True)
    return classification.Config(model=model, data=data, label_smoothing=0.1)


def make_language_modeling(model: Any, folder: pathlib.Path) -> Any:
    """Writes documents, with 8 in the split "test", and returns the config."""
    tiny_lm.write_documents(folder)
    return dataclasses.replace(tiny_lm.make_lm_config(folder), model=model)


def make_summarization(folder: pathlib.Path) -> Any:
    """Writes articles with summaries, with 8 in the split "test", and returns the config."""
    tiny_lm.write_documents(folder)
    for path in folder.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(f"{line}; {line.split()[0]}" for line in lines), encoding="utf-8")
    data = {"row_length": 64, "batch_tokens": 128, "rows": "packed"}
    config = tiny_lm.make_lm_config(folder, model={"max_positions": 64}, data=data)
    model = CompressedLMConfig(layers=2, d_model=20, d_ff=24, heads=2, local_block=4)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return summarization.Config(**fields | {"task": "summarization", "model": model, "separator": "; "})


def make_parsing(model: Any, folder: pathlib.Path) -> Any:
    """Writes a treebank, with 5 trees in the split "test", and returns the config."""
    tiny_trees.write_treebank(folder)
    return dataclasses.replace(tiny_trees.make_parsing_config(folder), model=model)


def make_masked_language_modeling(model: Any, folder: pathlib.Path) -> Any:
    """Writes documents of sentences, with 16 rows in the split "test", and returns the config."""
    tiny_lm.write_documents(folder, words=tiny_lm.SENTENCES)
    fields = {"documents": "line", "row_length": 24, "batch_tokens": 96, "tokenizer": "characters"}
    folders = {"directory": str(folder), "cache_dir": str(folder / "cache")}
    return masked_language_modeling.Config(model=model, data=SentencesConfig(**fields, **folders))


def make_text_classification(model: Any, columns: dict[str, str], folder: pathlib.Path) -> Any:
    """Writes a table of labelled texts, with 9 in the split "test", and returns the config."""
    labelled_texts.write_tables(folder)
    return labelled_texts.make_config(folder, model, **columns)


TRANSLATION_MODELS = {
    "transformer": tiny.MODEL,
    "rnn_seq2seq": RNNConfig(**RNN_SIZES),
    "rnn_luong": LuongConfig(**RNN_SIZES),
    "conv_s2s": ConvS2SConfig(encoder="2x12/3", decoder="2x12/3", embedding_features=12),
    "universal": UniversalConfig(
        encoder_layers=2, decoder_layers=3, d_model=32, d_ff=40, heads=4, halting=True, random_start=4
    ),
}
BERT_HEADS = {
    "bert, classes": ("classes", {}),
    "bert, classes of pairs": ("classes", {"second_column": "second"}),
    "bert, tags": ("tags", {"label_column": "tags"}),
}
# {module of tfm.tasks: {module of tfm.models, and what else differs after a comma: (folder) -> config}}
TASKS: Mapping[str, Mapping[str, Callable[[pathlib.Path], Any]]] = {
    "translation": {
        name: functools.partial(make_translation, model) for name, model in TRANSLATION_MODELS.items()
    },
    "classification": {"vit": functools.partial(make_classification, images.MODEL)},
    "language_modeling": {"decoder_lm": functools.partial(make_language_modeling, tiny_lm.MODEL)},
    "summarization": {"compressed_lm": make_summarization},
    "parsing": {"transformer": functools.partial(make_parsing, tiny.MODEL)},
    "masked_language_modeling": {
        "bert": functools.partial(make_masked_language_modeling, labelled_texts.BERT)
    },
    "text_classification": {
        name: functools.partial(
            make_text_classification, dataclasses.replace(labelled_texts.BERT, head=head), columns
        )
        for name, (head, columns) in BERT_HEADS.items()
    },
}
