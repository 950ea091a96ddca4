"""The table of `test_fields`. Each field has two values for which an observation differs."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tests.wiring import observers
from tests.wiring.observers import DOCUMENTS, LM, OTHER_MODELS, PAIRS, PICTURES, TRANSFORMER
from tfm import tasks
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.models import TransformerConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.rnn_luong import LuongConfig
from tfm.models.rnn_seq2seq import RNNConfig
from tfm.models.vit import ViTConfig
from tfm.tasks import classification, language_modeling, parsing, translation
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import SGD, Adafactor, Adam, AdamW, Lion

TASKS = ("translation", "parsing", "classification", "language_modeling")


@dataclasses.dataclass(frozen=True)
class Entry:
    """Two values of a field for which an observation differs.

    Attributes:
      section: the config class that owns the field.
      name: the name of the field.
      first, second: the values.
      observe: a function of the section, see `tests.wiring.observers`.
      base: the other fields of the section, {name: value}.
      parts: the parts of the observation, each of which differs.
    """

    section: type
    name: str
    first: Any
    second: Any
    observe: Callable[[Any], observers.Observation]
    base: dict[str, Any]
    parts: tuple[str, ...]

    def make(self, value: Any) -> Any:
        """Returns the section with a value of the field."""
        return self.section(**self.base | {self.name: value})


def make_entries(
    section: type,
    observe: Callable,
    parts: str,
    base: dict[str, Any],
    values: dict[str, tuple[Any, ...]],
) -> list[Entry]:
    """Returns an entry for each field.

    Args:
      section: the config class.
      observe: the observer.
      parts: names of parts of the observation, separated by blanks.
      base: fields of all entries.
      values: {field: (first, second)} or {field: (first, second, further fields)}.
    """
    return [
        Entry(section, name, first, second, observe, base | dict(*more), tuple(parts.split()))
        for name, (first, second, *more) in values.items()
    ]


def name_values(section: type) -> tuple[str, str]:
    """Returns the name of a model and the name of another model with the same config."""
    return section().name, f"{observers.__name__}:{OTHER_MODELS[section]}"


# Fields of several models, and fields of recurrent models.

STACK = {
    "d_model": (8, 12),
    "d_ff": (12, 16),
    "heads": (2, 4),
    "activation": ("relu", "gelu"),
    "layer_norm_epsilon": (1e-6, 1e-3),
    "dropout": (0.1, 0.2),
    "attention_dropout": (0.0, 0.2),
    "attention": (None, "xla"),
    "remat": (False, True),
    "scan": (False, True),
    "dtype": ("float32", "bfloat16"),
}
CHOICES = {
    "key_features": (None, 6),
    "value_features": (None, 6),
    "key_value_heads": (None, 1),
    "scale_attention": (True, False),
    "attention_window": (None, 3),
    "attention_bias": (False, True),
    "gated": (False, True),
    "norm": ("layer_norm", "rms_norm"),
    "norm_order": ("post", "pre"),
    "deep_norm": (False, True, {"norm_order": "post"}),
    "feed_forward_dropout": (0.0, 0.2),
    "positions": ("interleaved", "rotary"),
    "max_positions": (16, 24, {"positions": "learned"}),
}
RECURRENT = {
    "cell": ("gru", "lstm"),
    "layers": (1, 2),
    "bidirectional": (False, True),
    "embedding_features": (6, 8),
    "hidden_features": (5, 7),
    "initial_state": ("projected", "copied"),
    "attention": ("additive", "general"),
    "attention_features": (4, 6),
    "query": ("previous", "current"),
    "input_feeding": (False, True),
    "output": ("maxout", "linear"),
    "output_state": ("previous", "current"),
    "output_features": (7, 9),
    "share_embeddings": (False, True),
    "tie_output": (False, True, {"output_features": 6}),
    "forget_bias": (0.0, 0.5, {"cell": "lstm"}),
    "dropout": (0.1, 0.2),
    "dtype": ("float32", "bfloat16"),
}
RNN_SIZES = {"layers": 1, "embedding_features": 6, "hidden_features": 5, "attention_features": 4}
RNN_SIZES |= {"output_features": 7, "dropout": 0.1, "attention": "additive", "output": "maxout"}
RNN_SIZES |= {"cell": "gru", "query": "previous", "output_state": "previous"}
SMALL_VIT = {"image_size": 4, "channels": 2, "patch_size": 2, "classes": 3, "encoder_layers": 1}
SMALL_VIT |= {"d_model": 8, "d_ff": 12, "heads": 2}


def model_entries() -> Iterator[Entry]:
    """Yields the entries of the configs of models."""
    of_model = functools.partial(make_entries, observe=observers.observe_model)
    of_transformer = {
        "name": name_values(TransformerConfig),
        "encoder_layers": (1, 2),
        "decoder_layers": (2, 3),
        "tied_embeddings": ("three", "two"),
    }
    base = fields_of(TRANSFORMER)
    yield from of_model(TransformerConfig, parts="loss", base=base, values=STACK | CHOICES | of_transformer)
    of_lm = {
        "name": name_values(DecoderLMConfig),
        "layers": (1, 2),
        "scale_embedding": (False, True),
        "tied_embeddings": (True, False),
    }
    base = fields_of(LM) | {"attention_dropout": 0.0}
    yield from of_model(DecoderLMConfig, parts="loss", base=base, values=STACK | CHOICES | of_lm)
    of_vit = {
        "name": name_values(ViTConfig),
        "image_size": (4, 6),
        "channels": (2, 3),
        "patch_size": (2, 1),
        "classes": (3, 4),
        "encoder_layers": (1, 2),
    }
    choices = {name: values for name, values in CHOICES.items() if name != "max_positions"}
    yield from of_model(ViTConfig, parts="loss", base=SMALL_VIT, values=STACK | choices | of_vit)
    for section in (RNNConfig, LuongConfig):
        values = RECURRENT | {"name": name_values(section)}
        yield from of_model(section, parts="loss", base=RNN_SIZES, values=values)
        initial = {"initialization": ("bahdanau", "glorot")}
        yield from of_model(section, parts="init", base=RNN_SIZES, values=initial)
    scaled = {"deep_norm": (False, True, {"norm_order": "post"})}
    for model in (TRANSFORMER, LM):
        yield from of_model(type(model), parts="init", base=fields_of(model), values=scaled)


def part_entries() -> Iterator[Entry]:
    """Yields entries of fields that several parts of a Transformer read, for each of these parts."""
    of_stack = {
        "d_model": "attention embedding feed_forward positions",
        "dtype": "attention embedding feed_forward norm",
        "dropout": "residual",
        "attention": "attention masked_self_attention",
        "remat": "stack",
        "scan": "stack",
    }
    of_choices = {"norm_order": "residual stack", "attention_bias": "attention masked_self_attention"}
    for section, base, names in (
        (TransformerConfig, fields_of(TRANSFORMER), of_stack | of_choices),
        (DecoderLMConfig, fields_of(LM) | {"attention_dropout": 0.0}, of_stack | of_choices),
        (ViTConfig, SMALL_VIT, of_stack | {"dropout": "residual feed_forward"}),
    ):
        for name, parts in names.items():
            values = {name: (STACK | CHOICES)[name]}
            yield from make_entries(section, observers.observe_parts, parts, base, values)
    base = fields_of(TRANSFORMER)
    for second in ("concatenated", "learned", "none"):
        values = {"positions": ("interleaved", second)}
        yield from make_entries(TransformerConfig, observers.observe_parts, "positions", base, values)
    for second in ("relative_keys", "relative_bias", "alibi"):
        values = {"positions": ("rotary", second)}
        yield from make_entries(
            TransformerConfig, observers.observe_parts, "masked_self_attention", base, values
        )
    biased = {"heads": (2, 4, {"positions": "relative_bias"})}
    yield from make_entries(TransformerConfig, observers.observe_parts, "masked_self_attention", base, biased)


def fields_of(section: Any) -> dict[str, Any]:
    """Returns the fields of a section without those of nested sections."""
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}


def data_entries() -> Iterator[Entry]:
    """Yields the entries of the data sections."""
    of_pairs = functools.partial(make_entries, PairsConfig, observers.observe_data)
    table = {"kind": "table", "train": "train.tsv", "validation": "validation.tsv", "test": "test.tsv"}
    columns = {"source_column": "1", "target_column": "2", "vocabulary_size": 340}
    mixed = {split: f"{split}.mixed" for split in ("train", "validation", "test")} | columns
    two = {"train": "train,more"}
    of_own = {
        "kind": ("text", f"{observers.__name__}:open_reversed"),
        "directory": ("corpus", "elsewhere"),
        "source_language": ("en", "fr"),
        "target_language": ("de", "fr"),
        "source_column": ("", "fr", table),
        "target_column": ("", "fr", table),
        "format": ("tsv", "csv", table | mixed),
    }
    yield from of_pairs("train validation test", PAIRS, of_own)
    yield from of_pairs("train validation", PAIRS, {"max_length": (32, 9), "batch_tokens": (64, 96)})
    packed = {"batching": "packed", "row_length": 24, "max_length": 24}
    rows = {"row_length": (24, 20), "batch_tokens": (64, 96)}
    yield from of_pairs("train validation", PAIRS | packed, rows)
    batching = {"batching": ("buckets", "packed", {"row_length": 24})}
    yield from of_pairs("train validation", PAIRS, batching)
    yield from of_pairs("train", PAIRS, {"train": ("train", "more")})
    yield from of_pairs("validation pairs", PAIRS, {"validation": ("validation", "check")})
    yield from of_pairs("test", PAIRS, {"test": ("test", "exam")})
    of_training = {
        "mixing": ("1,1", "1,3", two),
        "joined_share": (0.2, 0.9),
        "subword_dropout": (0.1, 0.4),
        "subword_samples": (1, 2, {"subword_dropout": 0.4}),
    }
    yield from of_pairs("train", PAIRS, of_training)
    tagged = two | {"validation": "check,more", "test": "exam,test"}
    of_vocabulary = {
        # The tokenizer learns from a pair of the first corpus, so that the second tag is only a symbol.
        "tags": ("<a>,<b>", "<a>,<c>", tagged | {"vocabulary_pairs": 1, "vocabulary_size": 290}),
        "tokenizer": ("word_pieces", "own.model"),
        "vocabulary_size": (330, "auto"),
        "vocabulary_pairs": (5_000_000, 7),
    }
    yield from of_pairs("assets", PAIRS, of_vocabulary)
    yield from of_pairs("train validation test", PAIRS, {"tags": ("", "<a>,<b>", tagged)})
    yield from library_entries()
    caches = {"cache_dir": ("first_cache", "second_cache")}
    tokens = functools.partial(make_entries, observe=observers.observe_cache, parts="tokens", values=caches)
    yield from tokens(PairsConfig, base=PAIRS)
    yield from tokens(DocumentsConfig, base=DOCUMENTS)
    yield from document_entries(table)
    yield from image_entries()


def library_entries() -> Iterator[Entry]:
    """Yields the entries of the fields that name a data set of TFDS or Hugging Face."""
    named = {"name": ("a", "b"), "directory": ("", "folder")}
    read: dict[type, dict[str, Any]] = {
        PairsConfig: {"source_language": ("en", "fr"), "target_language": ("de", "fr")},
        DocumentsConfig: {"feature": ("text", "other")},
        ImagesConfig: {},
    }
    for section, fields in read.items():
        of_library = functools.partial(make_entries, section, observers.observe_library)
        tfds, saved = ({"name": "a", "kind": kind} for kind in ("tfds", "huggingface"))
        yield from of_library("found prepared", tfds, named)
        yield from of_library("opened", tfds, fields | {"train": ("train", "all")})
        if section is not ImagesConfig:
            yield from of_library("opened", saved, named | fields | {"train": ("train", "all")})


def document_entries(table: dict[str, Any]) -> Iterator[Entry]:
    """Yields the entries of the data section of language models."""
    of_documents = functools.partial(make_entries, DocumentsConfig, observers.observe_data)
    columns = {split: f"{split}.mixed" for split in ("train", "validation", "test")} | {"feature": "2"}
    of_own = {
        "kind": ("text", "table", table | {"feature": "en"}),
        "directory": ("corpus", "elsewhere"),
        "feature": ("en", "fr", table),
        "documents": ("line", "file"),
        "format": ("tsv", "csv", table | columns),
    }
    yield from of_documents("train validation texts test", DOCUMENTS, of_own)
    of_rows = {"rows": ("contiguous", "packed"), "row_length": (16, 12)}
    yield from of_documents("train validation test", DOCUMENTS, of_rows)
    yield from of_documents("train validation", DOCUMENTS, {"batch_tokens": (64, 96)})
    yield from of_documents("train", DOCUMENTS, {"train": ("train.en", "more.en")})
    yield from of_documents("validation texts", DOCUMENTS, {"validation": ("validation.en", "check.en")})
    yield from of_documents("test", DOCUMENTS, {"test": ("test.en", "exam.en")})
    yield from of_documents("assets train validation", DOCUMENTS, {"tokenizer": ("bytes", "characters")})
    pieces = {"tokenizer": "word_pieces"}
    yield from of_documents("assets", DOCUMENTS | pieces, {"vocabulary_size": (330, 320)})


def image_entries() -> Iterator[Entry]:
    """Yields the entries of the data section of image classification."""
    of_images = functools.partial(make_entries, ImagesConfig, observers.observe_data)
    yield from of_images("train validation test", PICTURES, {"file": ("images.npz", "others.npz")})
    yield from of_images("train validation test description", PICTURES, {"batch_size": (8, 6)})
    yield from of_images("train", PICTURES, {"train": ("train", "more")})
    yield from of_images("train description", PICTURES, {"max_shift": (1, 2), "flip": (False, True)})
    yield from of_images("validation", PICTURES, {"validation": ("validation", "check")})
    yield from of_images("test", PICTURES, {"test": ("test", "exam")})
    kinds = {"kind": ("arrays", "digits")}
    yield from make_entries(ImagesConfig, observers.observe_images, "images labels", PICTURES, kinds)


RUN = {"steps": 6, "warmup_steps": 3, "log_every": 2, "eval_every": 3, "checkpoint_every": 2, "keep": 9}
RUN |= {"trackers": ()}


def training_entries() -> Iterator[Entry]:
    """Yields the entries of the training section and of the optimizers."""
    of_step = functools.partial(make_entries, TrainingConfig, observers.observe_setup)
    of_update = {
        "schedule": ("inverse_sqrt", "constant"),
        "steps": (6, 8, {"schedule": "cosine_decay"}),
        "warmup_steps": (3, 4),
        "peak_learning_rate": (None, 0.1),
        "learning_rate_scale": (1.0, 0.5),
        "clip_norm": (1.0, 2.0),
        "freeze": ((), ("offset",)),
        "learning_rate_factors": ((), ("offset=0.5",)),
        "weight_decay_factors": ((), ("slope=2",), {"optimizer": SGD(weight_decay=0.1)}),
        "gradient_accumulation_steps": (1, 2),
        "ema_decay": (0.5, 0.9),
        "on_non_finite": ("stop", "skip"),
    }
    yield from of_step("step", RUN, of_update)
    yield from of_step("step", RUN, {"steps": (6, 8, {"schedule": "linear_decay"})})
    yield from of_step("state", RUN, {"ema_decay": (0.0, 0.5), "freeze": ((), ("offset",))})
    yield from of_step("keys", RUN, {"seed": (0, 1)})
    for layouts in (("jit", "pmap"), ("pmap", "mesh")):
        yield from of_step("batch", RUN, {"parallel": layouts})
    for layout in ("auto", "mesh"):
        meshes = {"mesh_fsdp": (1, 2), "mesh_tensor": (1, 2)}
        yield from of_step("error", RUN | {"parallel": layout}, meshes)
    of_run = functools.partial(make_entries, TrainingConfig, observers.observe_training)
    yield from of_run("losses scores checkpoints", RUN, {"steps": (6, 8)})
    yield from of_run("rates", RUN, {"learning_rate_scale": (1.0, 0.5)})
    yield from of_run("losses", RUN, {"log_every": (2, 3), "gradient_accumulation_steps": (1, 2)})
    yield from of_run("scores", RUN, {"eval_every": (3, 2), "ema_decay": (0.5, 0.9)})
    yield from of_run("files", RUN, {"trackers": ((), ("tensorboard",))})
    each = {"checkpoint_every": 1, "eval_every": 1, "keep": 1}
    of_checkpoints = {"checkpoint_every": (2, 1), "keep": (1, 2), "keep_best": (1, 3, each)}
    yield from of_run("checkpoints", RUN, of_checkpoints)
    of_bad = functools.partial(make_entries, TrainingConfig, observers.observe_bad_training)
    yield from of_bad("error losses", RUN, {"on_non_finite": ("stop", "skip")})
    yield from of_bad("warnings", RUN | {"on_non_finite": "skip"}, {"diverged_after": (1, 0)})
    patient = {"eval_every": 1, "on_non_finite": "skip", "peak_learning_rate": 9.0}
    yield from of_bad("checkpoints", RUN | patient, {"patience": (1, 0)})
    of_store = functools.partial(make_entries, TrainingConfig, observers.observe_store)
    for name in ("keep", "keep_best", "keep_hours"):
        yield from of_store(name, RUN, {name: (2, 3)})
    orders = "translation language_modeling classification"
    yield from make_entries(TrainingConfig, observers.observe_order, orders, RUN, {"seed": (0, 1)})
    yield from optimizer_entries()


def optimizer_entries() -> Iterator[Entry]:
    """Yields the entries of the optimizers."""
    of_optimizer = functools.partial(make_entries, observe=observers.observe_optimizer, parts="update")
    betas = {"b1": (0.9, 0.8), "b2": (0.98, 0.9)}
    moments = {"epsilon": (1e-9, 1e-3), "mean_dtype": ("float32", "bfloat16")}
    decay = {"weight_decay": (0.1, 0.2), "not_decayed": ((), ("offset",), {"weight_decay": 0.1})}
    momentum = {"momentum": (0.0, 0.9)}
    values: dict[type, dict[str, Any]] = {
        Adam: betas | moments,
        AdamW: betas | moments | decay,
        Lion: betas | decay,
        Adafactor: momentum | {"smallest_factored": (1, 128), "parameter_scale": (True, False)},
        SGD: momentum | decay | {"nesterov": (False, True, {"momentum": 0.9})},
    }
    for section, fields in values.items():
        yield from of_optimizer(section, base={}, values=fields)
    sized = {Adam: moments, AdamW: moments, Adafactor: momentum, SGD: momentum}
    for section, fields in sized.items():
        size_fields = {name: fields[name] for name in ("mean_dtype", "momentum") if name in fields}
        yield from of_optimizer(section, base={}, parts="bytes", values=size_fields)
    for section in values:
        other = "sgd" if section is Adam else "adam"
        names = {"name": (section().name, other)}
        yield from make_entries(section, observers.observe_parsed_optimizer, "class", {}, names)


def decoding_entries() -> Iterator[Entry]:
    """Yields the entries of the decoding sections."""
    of_search = functools.partial(make_entries, DecodingConfig, observers.observe_translations)
    sampled = {"samples": 4}
    base = {"max_extra_tokens": 4, "length_penalty": 0.6, "beam_size": 2}
    values = {
        "beam_size": (2, 3),
        "length_penalty": (0.6, 0.7),
        "coverage_penalty": (0.5, 0.7),
        "min_length": (1, 2),
        "max_extra_tokens": (4, 5),
        "samples": (3, 4),
        "temperature": (0.8, 0.9, sampled),
        "top_k": (3, 4, sampled),
        "top_p": (0.8, 0.9, sampled),
        "attention_layer": (-1, 0, {"coverage_penalty": 0.5}),
        "dtype": ("", "bfloat16"),
    }
    yield from of_search("programs", base, values)
    yield from of_search("keys", base, {"seed": (0, 1, sampled)})
    yield from of_search("hypotheses", base, {"utility": ("chrf", "bleu", sampled), "samples": (0, 4)})
    yield from of_search("hypotheses inputs", base, {"max_input": (32, 6)})
    yield from of_search("hypotheses inputs", base, {"overflow": ("split", "cut", {"max_input": 6})})
    yield from of_search("inputs", base, {"batch_size": (4, 1)})
    of_alignment = functools.partial(make_entries, DecodingConfig, observers.observe_alignments)
    yield from of_alignment("attention", base, {"attention_layer": (-1, 0)})
    of_text = functools.partial(make_entries, GenerationConfig, observers.observe_continuations)
    searched = {"samples": 0}
    base = {"max_tokens": 6, "samples": 2}
    values = {
        "samples": (2, 3),
        "max_tokens": (6, 7),
        "temperature": (0.8, 0.9),
        "top_k": (3, 4),
        "top_p": (0.8, 0.9),
        "beam_size": (2, 3, searched),
        "length_penalty": (0.1, 0.2, searched),
        "dtype": ("", "bfloat16"),
    }
    yield from of_text("programs", base, values)
    yield from of_text("keys", base, {"seed": (0, 1)})
    yield from of_text("inputs", base, {"batch_size": (4, 1), "max_tokens": (6, 28)})


def task_entries() -> Iterator[Entry]:
    """Yields the entries of the fields of tasks outside of the sections."""
    names = dict(zip(TASKS, (*TASKS[1:], TASKS[0]), strict=True))
    for name, other in names.items():
        parsed = {"task": (name, other)}
        section = tasks.find(name).Config
        yield from make_entries(section, observers.observe_task, "class", {}, parsed)
    of_loss = functools.partial(make_entries, observe=observers.observe_loss, parts="loss")
    smoothing, chunks = {"label_smoothing": (0.1, 0.2)}, {"loss_chunk_size": (2, 4)}
    for section in (translation.Config, parsing.Config):
        base = {"model": TRANSFORMER, **observers.SHORT}
        yield from of_loss(section, base=base, values=smoothing | chunks)
    yield from of_loss(classification.Config, base={"model": ViTConfig(**SMALL_VIT)}, values=smoothing)
    documents = {"model": LM, "data": DocumentsConfig(**DOCUMENTS), "stride": 8}
    of_text = functools.partial(make_entries, language_modeling.Config, observers.observe_loss)
    yield from of_text("loss scores", documents, chunks)
    of_run = functools.partial(make_entries, observe=observers.observe_run)
    pairs = {"model": TRANSFORMER, "data": PairsConfig(**PAIRS)}
    trees = PairsConfig(**PAIRS | {"kind": "treebank", "vocabulary_size": 400, "batch_tokens": 256})
    trees = dataclasses.replace(trees, source_language="words", target_language="trees", max_length=128)
    for section, data in ((translation.Config, pairs), (parsing.Config, pairs | {"data": trees})):
        yield from of_run(section, parts="pairs samples", base=data, values={"validation_sentences": (2, 3)})
        yield from of_run(section, parts="samples", base=data, values={"validation_samples": (1, 2)})
    yield from of_run(
        language_modeling.Config, parts="validation test", base=documents, values={"stride": (8, 4)}
    )
    counted = {"validation_documents": (0, 3)}
    yield from of_run(language_modeling.Config, parts="validation texts", base=documents, values=counted)
    samples = {"validation_samples": (1, 2)}
    yield from of_run(language_modeling.Config, parts="samples", base=documents, values=samples)


MAKERS = (model_entries, part_entries, data_entries, training_entries, decoding_entries, task_entries)
ENTRIES = [entry for make in MAKERS for entry in make()]
