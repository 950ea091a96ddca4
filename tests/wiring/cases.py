"""Tiny config sections with their observers, and values that the type of a field does not imply."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.wiring import image_observers, observers, system_observers
from tests.wiring.observers import (
    BERT,
    DOCUMENTS,
    ENDING_IN_SUMMARIES,
    LABELLED,
    LM,
    PAIRS,
    PICTURES,
    RUNNING_TEXTS,
    SUMMARIES,
    TRANSFORMER,
)
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.systems.bert import classification as text_classification
from tfm.systems.bert import pretraining as masked_language_modeling
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.systems.conv_s2s.model import ConvS2SConfig
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import CaptionsConfig
from tfm.systems.detr import task as detection
from tfm.systems.detr.batches import BoxedPicturesConfig
from tfm.systems.detr.model import DETRConfig
from tfm.systems.detr.resnet import ResNetConfig
from tfm.systems.feed_forward_lm.model import FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig
from tfm.systems.memory_network import task as question_answering
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.systems.parsing import task as parsing
from tfm.systems.parsing.treebank import TREEBANK
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.luong import LuongConfig
from tfm.systems.sagan import task as image_generation
from tfm.systems.t_dmca import task as summarization
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.systems.t_dmca.summaries import SummariesConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.systems.vit.model import ViTConfig
from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.skip_grams import SkipGramsConfig
from tfm.tasks import image_classification as classification
from tfm.tasks import language_modeling, translation
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import SGD, Adafactor, Adam, AdamW, Muon


class Case(NamedTuple):
    """A section, and the function that observes what its fields change."""

    section: Any
    observe: Callable[[Any], observers.Observation]


def make_cases(base: Any, observe: Callable, *changes: dict[str, Any]) -> list[Case]:
    """Returns the case of a section, and a case for each of the changes to it."""
    return [Case(dataclasses.replace(base, **each), observe) for each in ({}, *changes)]


VIT = ViTConfig(
    image_size=4, channels=2, patch_size=2, classes=3, encoder_layers=1, d_model=8, d_ff=12, heads=2
)
UNIVERSAL = UniversalConfig(**{**dataclasses.asdict(TRANSFORMER), "name": "universal"})
COMPRESSED = TDMCAConfig(
    layers=1, d_model=8, d_ff=12, heads=2, max_positions=32, local_block=2, compression=2
)
CONV = ConvS2SConfig(encoder="1x8/3", decoder="1x8/3", embedding_features=6, max_positions=16, dropout=0.1)
RNN_SIZES = {"layers": 1, "embedding_features": 6, "hidden_features": 5, "attention_features": 4}
RNN_SIZES |= {"output_features": 7, "dropout": 0.1, "attention": "additive", "output": "maxout"}
LSTM = {"cell": "lstm", "output_features": 6}  # 6 features, so that tie_output is valid
LEARNED = {"positions": "learned"}
SINUSOIDS = {"positions": "interleaved"}
POST = {"norm_order": "post"}  # required by deep_norm
TABLE = {"kind": "table", "train": "train.tsv", "validation": "validation.tsv", "test": "test.tsv"}
PICTURE_TABLE = ImagesConfig(
    kind="table", directory="pictures", train="train.csv", resize=4, batch_size=3, cache_dir="picture_cache"
)
NORMALIZED_ARRAYS = ImagesConfig(
    kind="arrays", file="normalized.npz", mean=(0.1,), deviation=(0.9,), batch_size=3
)
WORD_PIECES = {"tokenizer": "word_pieces", "vocabulary_size": 330}
TWO_CORPORA = {"train": "train,more", "validation": "check,more", "test": "exam,test", "tags": "<a>,<b>"}
TREES = dataclasses.replace(
    PAIRS,
    kind=TREEBANK,
    source_language="words",
    target_language="trees",
    vocabulary_size=400,
    batch_tokens=256,
    max_length=128,
)
PLAIN = TrainingConfig(
    steps=6, warmup_steps=3, log_every=2, eval_every=3, checkpoint_every=2, keep=9, trackers=()
)
SKIPPING = dataclasses.replace(PLAIN, on_non_finite="skip")
IMPATIENT = {"eval_every": 1, "peak_learning_rate": 9.0, "patience": 1}
DECAYED = {"optimizer": SGD(weight_decay=0.1)}
SHORT = DecodingConfig(max_extra_tokens=4, beam_size=2, max_input=8, batch_size=2)
TEXT = GenerationConfig(max_tokens=6, samples=2, batch_size=2)

SECTIONS = [
    *make_cases(TRANSFORMER, observers.observe_model, LEARNED),
    *make_cases(CONV, observers.observe_model),
    *make_cases(
        COMPRESSED,
        observers.observe_model,
        POST,
        SINUSOIDS,
        {"attention_dropout": 0.0},
        LEARNED,
        {"pattern": "M"},
    ),
    *make_cases(UNIVERSAL, observers.observe_model, LEARNED, {"halting": True}),
    *make_cases(LM, observers.observe_model, POST, SINUSOIDS, {"attention_dropout": 0.0}),
    Case(LSTMConfig(features=6), observers.observe_model),
    Case(FeedForwardLMConfig(embedding_features=6, hidden_features=5, dropout=0.1), observers.observe_model),
    *make_cases(VIT, observers.observe_model, POST, SINUSOIDS),
    *make_cases(BERT, observers.observe_model, {"attention_dropout": 0.0}, {"head": "classes"}, {"types": 0}),
    *make_cases(RNNConfig(**RNN_SIZES), observers.observe_model, LSTM),
    *make_cases(LuongConfig(**RNN_SIZES), observers.observe_model, LSTM),
    *make_cases(
        PAIRS,
        observers.observe_data,
        {"batching": "packed", "row_length": 24},
        TABLE,
        TWO_CORPORA | {"mixing": "1,1"},
        {"subword_dropout": 0.4, "subword_samples": 1},
    ),
    *make_cases(PairsConfig(name="a"), observers.observe_library),
    *make_cases(DOCUMENTS, observers.observe_data, TABLE | {"feature": "en"}, WORD_PIECES),
    *make_cases(DocumentsConfig(kind="tfds", name="a"), observers.observe_library),
    *make_cases(SUMMARIES, observers.observe_data, TABLE, WORD_PIECES),
    *make_cases(ENDING_IN_SUMMARIES, observers.observe_data),
    *make_cases(SummariesConfig(kind="tfds", name="a"), observers.observe_library),
    *make_cases(RUNNING_TEXTS, observers.observe_data, TABLE, WORD_PIECES),
    *make_cases(SentencesConfig(kind="tfds", name="a"), observers.observe_library),
    *make_cases(LABELLED, observers.observe_data),
    *make_cases(LabelledConfig(kind="tfds", name="a"), observers.observe_library),
    *make_cases(PICTURES, observers.observe_data),
    *make_cases(ImagesConfig(name="a"), observers.observe_library),
    *make_cases(PICTURE_TABLE, observers.observe_pictures),
    *make_cases(NORMALIZED_ARRAYS, observers.observe_pictures),
    *make_cases(PLAIN, observers.observe_setup, {"schedule": "cosine_decay"}, DECAYED),
    *make_cases(SKIPPING, observers.observe_training, IMPATIENT),
    *make_cases(PLAIN, observers.observe_order),
    *make_cases(SGD(momentum=0.5, weight_decay=0.1), observers.observe_optimizer),
    *make_cases(SHORT, observers.observe_translations, {"samples": 4}, {"coverage_penalty": 0.5}),
    *make_cases(TEXT, observers.observe_continuations, {"samples": 0, "beam_size": 2}),
    *(Case(kind(), observers.observe_optimizer) for kind in (Adam, AdamW, Adafactor, Muon)),
]


def make_text_cases() -> list[Case]:
    """Returns the cases of the tasks that read or write texts."""
    pairs_fields = {
        "model": TRANSFORMER,
        "decoding": SHORT,
        "loss_chunk_size": 2,
        "validation_sentences": 3,
        "validation_samples": 1,
    }
    documents_fields = {
        "model": LM,
        "data": DOCUMENTS,
        "stride": 8,
        "loss_chunk_size": 2,
        "validation_documents": 3,
        "validation_samples": 1,
    }
    trained = [
        translation.Config(data=PAIRS, **pairs_fields),
        parsing.Config(data=TREES, **pairs_fields),
        language_modeling.Config(**documents_fields),
        summarization.Config(**documents_fields | {"data": SUMMARIES}),
        masked_language_modeling.Config(model=BERT, data=RUNNING_TEXTS, loss_chunk_size=2),
    ]
    classifier = dataclasses.replace(BERT, head="classes")
    return [
        *(
            Case(config, observe)
            for config in trained
            for observe in (observers.observe_loss, observers.observe_run)
        ),
        Case(text_classification.Config(model=classifier, data=LABELLED), observers.observe_loss),
    ]


def make_image_cases() -> list[Case]:
    """Returns the cases of the models, data and tasks of images."""
    models = [
        image_observers.RESNET,
        image_observers.SAGAN,
        image_observers.DETR,
        dataclasses.replace(image_observers.DETR, pixel_mean=(), pixel_deviation=()),
        image_observers.DVAE,
        image_observers.DALLE,
        dataclasses.replace(image_observers.DALLE, **POST),
    ]
    gan = image_generation.Config(
        model=image_observers.SAGAN,
        data=image_observers.PICTURES,
        training=image_observers.TRAINING,
        validation_samples=1,
    )
    detector = detection.Config(model=image_observers.DETR, data=image_observers.SCENES, validation_samples=1)
    first_stage = image_tokens.Config(
        model=image_observers.DVAE, data=image_observers.CAPTIONS, validation_samples=1
    )
    painter = text_to_image.Config(
        model=image_observers.DALLE, data=image_observers.CAPTIONS, validation_samples=1
    )
    return [
        Case(classification.Config(model=VIT), observers.observe_loss),
        *(Case(model, image_observers.observe_image_model) for model in models),
        Case(image_observers.SCENES, image_observers.observe_scenes),
        *make_cases(image_observers.BOXES, image_observers.observe_scenes, {"flip": True}),
        Case(image_observers.COCO, image_observers.observe_scenes),
        Case(image_observers.YOLO, image_observers.observe_scenes),
        Case(image_observers.CAPTIONS, image_observers.observe_captions),
        Case(image_observers.OWN_CAPTIONS, image_observers.observe_own_captions),
        *(Case(config, image_observers.observe_system) for config in (gan, detector, first_stage, painter)),
    ]


def make_system_cases() -> list[Case]:
    """Returns the cases of word vectors and question answering."""
    questions = question_answering.Config(
        model=system_observers.MEMORY_NETWORK, data=system_observers.STORIES, validation_samples=1
    )
    vectors = word_vectors.Config(
        model=system_observers.WORD2VEC, data=system_observers.SKIP_GRAMS, validation_samples=1
    )
    return [
        Case(system_observers.WORD2VEC, system_observers.observe_word2vec),
        Case(system_observers.SKIP_GRAMS, system_observers.observe_word2vec),
        Case(system_observers.OWN_TEXT, system_observers.observe_word2vec),
        Case(system_observers.OWN_TABLE, system_observers.observe_word2vec),
        Case(system_observers.MEMORY_NETWORK, system_observers.observe_memory_network),
        Case(system_observers.STORIES, system_observers.observe_memory_network),
        Case(system_observers.BABI, system_observers.observe_memory_network),
        Case(questions, image_observers.observe_system),
        Case(vectors, image_observers.observe_system),
    ]


CASES = [*SECTIONS, *make_text_cases(), *make_image_cases(), *make_system_cases()]

# Other values of the fields that contain paths, names or patterns.
SPLITS = {"train": "more", "validation": "check", "test": "exam"}
NOT_DECAYED = {"not_decayed": ("offset",)}
VALUES: dict[type, dict[str, Any]] = {
    PairsConfig: {
        "kind": "table",
        "name": "b",
        "directory": "elsewhere",
        "source_language": "fr",
        "target_language": "fr",
        "source_column": "fr",
        "target_column": "fr",
        "mixing": "1,3",
        "references": "fr",
        "tags": "<a>,<c>",
        "source_prefix": "<a>",
        "target_prefix": "<c>",
        "tokenizer": "own.model",
        "cache_dir": "other_cache",
    }
    | SPLITS,
    DocumentsConfig: {
        "kind": "table",
        "name": "b",
        "directory": "elsewhere",
        "feature": "fr",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
        **{split: f"{other}.en" for split, other in SPLITS.items()},
    },
    SentencesConfig: {
        "kind": "table",
        "name": "b",
        "directory": "elsewhere",
        "feature": "other",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
        **{split: f"{other}.txt" for split, other in SPLITS.items()},
    },
    LabelledConfig: {
        "kind": "tfds",
        "name": "b",
        "directory": "elsewhere",
        "text_column": "other",
        "second_column": "other",
        "label_column": "letter",
        "tokenizer": "own.model",
        "cache_dir": "other_cache",
        **{split: f"{other}.tsv" for split, other in SPLITS.items()},
    },
    ImagesConfig: {
        "name": "b",
        "directory": "elsewhere",
        "file": "others.npz",
        "pictures": "others",
        "picture_column": "other",
        "label_column": "letter",
        "cache_dir": "other_cache",
        "mean": (0.25,),
        "deviation": (0.75,),
    }
    | SPLITS,
    BoxedPicturesConfig: {"directory": "elsewhere", "file": "others.npz"} | SPLITS,
    CaptionsConfig: {
        **dict.fromkeys(("directory", "pictures", "picture_column", "text_column"), "elsewhere"),
        "tokenizer": "bytes",
    }
    | SPLITS,
    StoriesConfig: {"directory": "elsewhere", "tasks": "8"},
    SkipGramsConfig: {
        "kind": "huggingface",
        "name": "pydoc_topics",
        "directory": "elsewhere",
        "feature": "en",
        "lower_case": True,
        "analogies": "../other_questions.txt",
        "similarities": "../other_pairs.txt",
        "cache_dir": "other_cache",
        **{split: f"{other}.en" for split, other in SPLITS.items()},
    },
    TDMCAConfig: {"pattern": "ML"},
    SummariesConfig: {
        "kind": "table",
        "name": "b",
        "directory": "elsewhere",
        "feature": "fr",
        "summary_column": "fr",
        "before_summary": "a",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
    }
    | SPLITS,
    ConvS2SConfig: {"encoder": "1x8/2", "decoder": "1x8/2"},
    image_generation.Config: {"judge": "elsewhere"},
    text_to_image.Config: {"judge": "elsewhere", "first_stage": "elsewhere"},
    ResNetConfig: {"depths": (2,)},
    DETRConfig: {"backbone_depths": (2,), "pixel_mean": (0.25,), "pixel_deviation": (0.25,)},
    TrainingConfig: {
        "freeze": ("offset",),
        "learning_rate_factors": ("offset=0.5",),
        "weight_decay_factors": ("slope=2",),
        "trackers": ("tensorboard",),
        "best_by": "max:loss",
    },
    AdamW: NOT_DECAYED,
    SGD: NOT_DECAYED,
}
