"""Tiny configs of every task with every model that the task trains."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support import babi, images, labelled_texts, tiny, tiny_lm, tiny_trees, word_texts
from tests.support.captioned_pictures import write_captions
from tfm.config import to_config_dict
from tfm.data.config import ImagesConfig
from tfm.systems.bert import pretraining as masked_language_modeling
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.systems.conv_s2s.model import ConvS2SConfig
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import FIRST_WORD_ID, WORDS, CaptionsConfig
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.feed_forward_lm.model import FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.luong import LuongConfig
from tfm.systems.sagan import task as image_generation
from tfm.systems.sagan.model import SelfAttentionGANConfig
from tfm.systems.t_dmca import task as summarization
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.systems.t_dmca.summaries import SummariesConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig
from tfm.tasks import image_classification as classification
from tfm.testing.parameters import random_parameters
from tfm.training.frozen import write_frozen

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
    model = TDMCAConfig(layers=2, d_model=20, d_ff=24, heads=2, local_block=4)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    data = SummariesConfig(**vars(config.data), before_summary="; ")
    return summarization.Config(**fields | {"task": "summarization", "model": model, "data": data})


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


def make_image_generation(model: Any, folder: pathlib.Path) -> Any:
    """Writes images, with 5 in the split "test", and a judge, and returns the config."""
    shape = model.image_size, model.image_size, model.channels
    images.write_arrays(folder / "images.npz", {"train": 13, "validation": 7, "test": 5}, shape)
    images.write_judge(folder / "run", model)
    data = ImagesConfig(kind="arrays", file=str(folder / "images.npz"), batch_size=4, max_shift=1, flip=True)
    return image_generation.Config(model=model, data=data)


def make_detection(model: Any, folder: pathlib.Path) -> Any:
    """Returns the config of a task with 5 scenes in the split "test"."""
    del folder
    return detection.Config(
        model=model, data=BoxedPicturesConfig(height=16, width=16, max_objects=2, batch_size=4, evaluated=5)
    )


def make_image_tokens(model: Any, folder: pathlib.Path) -> Any:
    """Returns the config of a task with 5 pictures in the split "test"."""
    del folder
    steps = {"temperature_steps": 4, "divergence_steps": 2}
    return image_tokens.Config(model=model, data=CaptionsConfig(batch_size=4, evaluated=5), **steps)


def make_text_to_image(model: Any, folder: pathlib.Path) -> Any:
    """Writes a random autoencoder and a judge, and returns the config. The split "test" has 5 pictures."""
    images.write_judge(folder / "run", text_to_image.DIGITS)
    image = np.zeros((1, DVAE.image_size, DVAE.image_size, 3), np.float32)
    params = random_parameters(DiscreteVAE(DVAE), image)
    path = str(folder / "run" / "first_stage.safetensors")
    write_frozen(path, to_config_dict(DVAE).to_dict(), {"params": params})
    return text_to_image.Config(model=model, data=CaptionsConfig(batch_size=4, evaluated=5))


def make_image_tokens_of_own_pictures(model: Any, folder: pathlib.Path) -> Any:
    """Writes pictures, with 5 in the split "test", and returns the config."""
    data = write_captions(folder, "txt")
    return image_tokens.Config(model=model, data=data, temperature_steps=4, divergence_steps=2)


def make_text_to_image_of_own_captions(model: Any, folder: pathlib.Path) -> Any:
    """Writes pictures with captions and a random autoencoder, and returns the config."""
    config = make_text_to_image(model, folder)
    return dataclasses.replace(config, data=write_captions(folder))


def make_word_vectors(model: Any, folder: pathlib.Path) -> Any:
    """Returns the config of a task with 200 sentences of the built-in language."""
    del folder
    data = SkipGramsConfig(sentences=200, minimum_count=1, window=2, subsampling=0.01, batch_size=12)
    return word_vectors.Config(model=model, data=data, negatives=3)


def make_own_word_vectors(model: Any, folder: pathlib.Path) -> Any:
    """Writes lines, and returns the config of a task whose reports have 24 questions."""
    word_texts.write_texts(folder)
    names = {split: f"{split}.txt" for split in ("train", "validation", "test")}
    folders = {"directory": str(folder), "cache_dir": str(folder / "cache"), "analogies": "many.txt"}
    sizes = {"minimum_count": 1, "window": 2, "subsampling": 0.01, "batch_size": 12, "validation_pairs": 20}
    data = SkipGramsConfig(kind="text", **names, **folders, **sizes)
    return word_vectors.Config(model=model, data=data, negatives=3)


def make_question_answering(model: Any, folder: pathlib.Path) -> Any:
    """Returns the config of a task with 7 stories in the split "test"."""
    del folder
    return question_answering.Config(model=model, data=StoriesConfig(sentences=6, batch_size=8, evaluated=7))


def make_babi(model: Any, folder: pathlib.Path) -> Any:
    """Writes a task of bAbI with 7 questions in the split "test", and returns the config."""
    babi.write_babi(folder)
    data = StoriesConfig(kind="babi", directory=str(folder), tasks="8", batch_size=8)
    return question_answering.Config(model=model, data=data, linear_steps=1)


DALLE = DALLEConfig(
    text_vocabulary=FIRST_WORD_ID + len(WORDS),
    codes=7,
    text_length=5,
    side=4,
    kernel=3,
    layers=2,
    d_model=16,
    d_ff=20,
    heads=2,
    dropout=0.1,
    attention_dropout=0.0,
)
OWN_DALLE = dataclasses.replace(DALLE, text_vocabulary=320, text_length=15)
DVAE = DVAEConfig(image_size=16, codes=7, width=8, code_width=5, groups=3, blocks=1)
DETR = DETRConfig(
    channels=1,
    classes=10,
    queries=3,
    encoder_layers=1,
    decoder_layers=2,
    backbone_depths=(1, 1),
    backbone_width=4,
    backbone_stem="small",
    d_model=16,
    d_ff=20,
    heads=2,
    dropout=0.1,
)
SAGAN = SelfAttentionGANConfig(
    image_size=8, channels=2, classes=3, noise=5, width=8, smallest_map=2, attention_map=4
)
TRANSLATION_MODELS = {
    "transformer": tiny.MODEL,
    "rnn_seq2seq": RNNConfig(**RNN_SIZES),
    "rnn_luong": LuongConfig(**RNN_SIZES),
    "conv_s2s": ConvS2SConfig(encoder="2x12/3", decoder="2x12/3", embedding_features=12),
    "universal": UniversalConfig(
        encoder_layers=2, decoder_layers=3, d_model=32, d_ff=40, heads=4, halting=True, random_start=4
    ),
}
LANGUAGE_MODELS = {
    "decoder_lm": tiny_lm.MODEL,
    "lstm_lm": LSTMConfig(layers=1, features=24, dropout=0.1, initial_range=0.4, forget_bias=1.0),
    "feed_forward_lm": FeedForwardLMConfig(embedding_features=12, hidden_features=20, dropout=0.1),
}
BERT_HEADS = {
    "bert, classes": ("classes", {}),
    "bert, classes of pairs": ("classes", {"second_column": "second"}),
    "bert, tags": ("tags", {"label_column": "tags"}),
    "bert, entities in columns": ("tags", {"kind": "conll", **labelled_texts.CONLL_FILES}),
    "bert, regression of pairs": ("regression", {"second_column": "second", "label_column": "number"}),
}
# {name of a task: {name of a model, and what else differs after a comma: (folder) -> config}}
TASKS: Mapping[str, Mapping[str, Callable[[pathlib.Path], Any]]] = {
    "translation": {
        name: functools.partial(make_translation, model) for name, model in TRANSLATION_MODELS.items()
    },
    "image_classification": {"vit": functools.partial(make_classification, images.MODEL)},
    "language_modeling": {
        name: functools.partial(make_language_modeling, model) for name, model in LANGUAGE_MODELS.items()
    },
    "summarization": {"t_dmca": make_summarization},
    "detection": {"detr": functools.partial(make_detection, DETR)},
    "image_tokens": {
        "dvae": functools.partial(make_image_tokens, DVAE),
        "dvae, own pictures": functools.partial(make_image_tokens_of_own_pictures, DVAE),
    },
    "image_generation": {"sagan": functools.partial(make_image_generation, SAGAN)},
    "text_to_image": {
        "dalle": functools.partial(make_text_to_image, DALLE),
        "dalle, own captions": functools.partial(make_text_to_image_of_own_captions, OWN_DALLE),
    },
    "word_vectors": {
        "word2vec": functools.partial(make_word_vectors, Word2VecConfig(features=8)),
        "word2vec, own text": functools.partial(make_own_word_vectors, Word2VecConfig(features=8)),
    },
    "question_answering": {
        "memory_network": functools.partial(make_question_answering, MemoryNetworkConfig(time_noise=0.3)),
        "memory_network, bAbI": functools.partial(make_babi, MemoryNetworkConfig(time_noise=0.3)),
    },
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
