"""Export of a translation model as a page that translates in the browser, without Python and a server.

The page contains all parameters as multiples of one step. `tfm/visualize/page/compute_*.js` repeat the
model, its search and its tokenizer in JavaScript. The bytes of the model are, in this order and
little-endian:

    uint32                   size of the header in bytes
    header                   JSON, see `_write_header`
    uint32 [parameters]      the parameters, see `_round`
    uint32 [units]           the trie of the tokenizer's replacements
    bytes                    the texts of the replacements

The lowest bytes of all integers come first, then the second bytes, and so on, because gzip then saves more.
"""

import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data.config import VOCABULARY_FILE
from tfm.data.tokenizers import sentencepiece_file
from tfm.data.tokenizers.protocol import has_separate_source
from tfm.data.tokenizers.sentencepiece_file import BPE, BYTE, CONTROL, NORMAL, UNKNOWN, Piece, Rules
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.interpret.observation import MAX_TOKENS
from tfm.interpret.switches import list_parts, write_script
from tfm.io.files import atomic_folder, writing
from tfm.layers.residual import encoder_decoder_constants
from tfm.visualize.live import describe_parts
from tfm.visualize.page import make_model_page
from tfm.workdir import runs
from tfm.workdir.bundle import flatten

PAGE = "index.html"
# Fraction of the root mean square of all parameters. With it, the logits of the quick start differ by less
# than 1e-3.
RELATIVE_STEP = 6e-5
SUPPORTED: dict[str, Sequence[Any]] = {  # {field of the config: values that the page can compute}
    "task": ("translation",),
    "model.name": ("transformer",),
    "model.positions": (
        *("interleaved", "concatenated", "learned", "none", "rotary"),
        "interleaved_and_rotary",
    ),
    "model.activation": ("relu", "gelu_tanh", "swish", "sigmoid"),
    "model.attention_window": (None,),
    "model.feed_forward_kernel": (1,),
    "model.dtype": ("float32",),
    "data.source_prefix": ("",),
    "data.target_prefix": ("",),
    "data.tags": ("",),
    "decoding.samples": (0,),
    "decoding.coverage_penalty": (0,),
    "decoding.no_repeat_ngram": (0,),
    "decoding.repetition_penalty": (1,),
    "decoding.dtype": ("", "float32"),
}
MODEL_FIELDS = (
    *("d_model", "heads", "encoder_layers", "decoder_layers", "activation", "gated", "norm", "norm_order"),
    *("layer_norm_epsilon", "positions", "first_position", "scale_attention", "scale_embedding"),
    *("embedding_norm", "tied_embeddings"),
)
DECODING_FIELDS = ("beam_size", "length_penalty", "min_length", "max_extra_tokens")


def write_page(run: runs.Run, folder: str, *, workdir: str, title: str) -> None:
    """Writes a run as a folder with one page. After an error, no partial folder remains.

    Args:
      run: the run, with a single model.
      folder: the folder to write. It must be empty or not exist.
      workdir: the folder of the run, with its vocabulary.
      title: title of the page.

    Raises:
      UserError: if the page cannot compute the run, or would be too large, or `folder` cannot be written.
    """
    variables = runs.single_model_variables(run)
    problems = list(find_problems(run.task.config))
    if not problems:
        problems = list(find_tokenizer_problems(run.task.tokenizer, workdir))
    if problems:
        raise UserError(
            f"A page cannot compute this run: {'; '.join(problems)}. Set model.dtype and fields of decoding "
            "by flags such as --config.model.dtype=float32. For everything else, train with the expected "
            "values, or use tfm explore."
        )
    page = make_page(run.task, variables, workdir, title)
    with writing(folder), atomic_folder(os.path.realpath(folder)) as temporary:
        pathlib.Path(temporary, PAGE).write_text(page, encoding="utf-8")


def find_problems(config: Any) -> Iterator[str]:
    """Yields the fields of a config that the page cannot compute, or only the first for other models."""
    for path, supported in SUPPORTED.items():
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name)
        if value not in supported:
            yield f"{path} is {value!r}, expected {' or '.join(map(repr, supported))}"
            if path in ("task", "model.name"):
                return


def find_tokenizer_problems(tokenizer: Any, workdir: str) -> Iterator[str]:
    """Yields why the page cannot split texts like a tokenizer."""
    if not isinstance(tokenizer, WordPieces):
        yield "its tokenizer is no SentencePiece model"
        return
    if has_separate_source(tokenizer):
        yield "source and target have different tokenizers"
    pieces, rules = _read_vocabulary(workdir)
    if rules.model_type != BPE:
        yield "its SentencePiece model is no byte-pair encoding"
    if unusual := sorted({piece.kind for piece in pieces} - {NORMAL, UNKNOWN, CONTROL, BYTE}):
        yield f"its SentencePiece model has symbols of the user or unused pieces (types {unusual})"
    ordered = [pieces[i] for i in tokenizer.file_ids if i < len(pieces)]
    scores = [piece.score for piece in ordered if piece.kind == NORMAL]
    if any(after >= before for before, after in itertools.pairwise(scores)):
        yield "the pieces of its SentencePiece model are not in the order of their merges"
    if rules.blank_as_suffix or not rules.escapes_blanks or rules.denormalizes:
        yield "its SentencePiece model has unusual rules for blanks"


def make_page(task: Any, variables: Any, workdir: str, title: str) -> str:
    """Returns the page of a task and its variables. The task has none of the problems that are refused.

    See `write_page` for the other arguments and the errors.
    """
    arrays = flatten(variables)
    parameters = {name: _as_matrix(name, np.array(x, np.float32)) for name, x in arrays.items()}
    pieces, rules = _read_vocabulary(workdir)
    header = _write_header(task, workdir, pieces, rules)
    model = pack_model(header, parameters, rules.replacements)
    live = describe_parts(task, list_parts(task, MAX_TOKENS))
    return make_model_page(task.default_examples(), title, live, model)


def pack_model(header: Mapping[str, Any], parameters: Mapping[str, np.ndarray], replacements: bytes) -> bytes:
    """Returns the bytes of a model, see the docstring of this module.

    Args:
      header: the configs and the tokenizer, to which this function adds the shapes and sizes.
      parameters: {name: float32 [rows, columns]}.
      replacements: see `tfm.data.tokenizers.sentencepiece_file.Rules`.

    Raises:
      UserError: if a parameter is NaN or infinite.
    """
    numbers = np.concatenate([x.reshape(-1) for x in parameters.values()])
    step = RELATIVE_STEP * float(np.sqrt(np.mean(np.square(numbers, dtype=np.float64))))
    if not np.isfinite(step):
        raise UserError("Expected parameters that are numbers, got NaN or infinity. Use another checkpoint.")
    units, texts = split_replacements(replacements)
    sizes = {
        "step": step,
        "shapes": [(name, *x.shape) for name, x in parameters.items()],
        "parameterCount": len(numbers),
        "unitCount": len(units),
    }
    text = json.dumps({**header, **sizes}, ensure_ascii=False, separators=(",", ":")).encode()
    sections = [len(text).to_bytes(4, "little"), text, _to_planes(_round(numbers, step))]
    return b"".join([*sections, _to_planes(units), texts])


def _write_header(task: Any, workdir: str, pieces: Sequence[Piece], rules: Rules) -> dict[str, Any]:
    """Returns the configs of the model and the search, and the pieces and rules of the tokenizer."""
    config, tokenizer = task.config, task.tokenizer
    model = config.model
    width = model.d_model // model.heads
    constants = encoder_decoder_constants(model.encoder_layers, model.decoder_layers)
    alphas = [each.alpha if model.deep_norm else 1.0 for each in constants]
    kinds = [pieces[i].kind if i < len(pieces) else CONTROL for i in tokenizer.file_ids]
    unknown = tokenizer.decode([kinds.index(UNKNOWN)]) if UNKNOWN in kinds else ""
    name = os.path.basename(os.path.abspath(workdir))
    return {
        "model": {
            **{name: getattr(model, name) for name in MODEL_FIELDS},
            "key_value_heads": model.key_value_heads or model.heads,
            "key_features": model.key_features or width,
            "value_features": model.value_features or width,
            "encoder_alpha": alphas[0],
            "decoder_alpha": alphas[1],
        },
        "tokenizer": {
            "pieces": tokenizer.pieces(range(len(tokenizer))),
            "kinds": "".join(map(str, kinds)),
            "unknown": unknown,
            "dummyPrefix": rules.dummy_prefix,
            "removesBlanks": rules.removes_blanks,
        },
        "settings": {
            "decoding": {name: getattr(config.decoding, name) for name in DECODING_FIELDS},
            "maxTokens": min(MAX_TOKENS, config.decoding.max_input),
            "python": write_script("Translator", repr(name), "EDITS", "translate([EXAMPLE])"),
        },
    }


def _read_vocabulary(workdir: str) -> tuple[list[Piece], Rules]:
    """Returns the pieces and the rules of the SentencePiece model of a run."""
    with open(os.path.join(workdir, VOCABULARY_FILE), "rb") as file:
        pieces, others = sentencepiece_file.read_pieces(file.read())
    return pieces, sentencepiece_file.read_rules(others)


def split_replacements(content: bytes) -> tuple[np.ndarray, bytes]:
    """Returns the units of the trie and the texts, see `Rules.replacements`."""
    if not content:
        return np.zeros(0, np.uint32), b""
    end = 4 + int.from_bytes(content[:4], "little")
    return np.frombuffer(content[4:end], "<u4"), content[end:]


def _as_matrix(name: str, array: np.ndarray) -> np.ndarray:
    """Returns a parameter with a row for each input feature, or as one row if it is a vector.

    The heads are axes of the kernels of attention: [D, H, K] for queries, keys and values, and [H, V, D] for
    the output.
    """
    if array.ndim == 1 or name.endswith("/bias"):
        return array.reshape(1, -1)
    if name.endswith("/output/kernel"):
        return array.reshape(-1, array.shape[-1])
    return array.reshape(len(array), -1)


def _round(numbers: np.ndarray, step: float) -> np.ndarray:
    """Returns numbers as multiples of a step, as uint32: 0, -1, 1, -2, 2, ... become 0, 1, 2, 3, 4, ..."""
    multiples = np.rint(numbers.astype(np.float64) / step).astype(np.int64)
    return np.where(multiples < 0, -2 * multiples - 1, 2 * multiples).astype(np.uint32)


def _to_planes(integers: np.ndarray) -> bytes:
    """Returns the bytes of uint32 integers: all lowest bytes, then all second bytes, and so on."""
    return integers.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()
