"""The record of what a model computes for one example: tokens or patches, attention, predictions, search.

Shape letters: N layers, B rows, H heads, L queries, M keys, G groups of heads that share their values, V
features of a value, D model width.
"""

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from tfm.data.tokenizers.protocol import PAD_ID, source_tokenizer
from tfm.decoding.batches import pad_ids
from tfm.devices.memory import check_estimate, host_memory
from tfm.devices.mesh import fetch
from tfm.errors import UserError
from tfm.interpret import reductions
from tfm.interpret.beam import Beam
from tfm.interpret.words import label_tokens, split_words
from tfm.layers.observe import Recorder, activate, check_attention, matches

MAX_TOKENS = 64
MAX_CHOICES = 8  # number of most probable tokens kept for each prediction
ATTENTION_COPIES = 3  # in memory: of the layers, stacked, and on the host
EXAMPLES = (  # of the paper's authors
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


class Track(NamedTuple):
    """A sequence of tokens, or of the patches of an image, between which a model attends.

    Attributes:
      element: what an element is, for the titles of axes, such as "source piece".
      labels: label of each token or patch.
      words: number of the word of each token, counted from 0 and ascending. A patch is a separate word.
      texts: text of each word.
      picture: the image as uint8 [height, width] or [height, width, 3], None for a text.
      grid: numbers of rows and columns of patches, None for a text. The patches are the last elements of the
        track. Elements before them, such as a class token, have no place in the image.
      boxes: the box that each element finds in the image of its keys: (left, top, right, bottom) in shares of
        the image, or None for no object. None for elements that find no boxes.
    """

    element: str
    labels: list[str]
    words: list[int]
    texts: list[str]
    picture: np.ndarray | None = None
    grid: tuple[int, int] | None = None
    boxes: Sequence[tuple[float, float, float, float] | None] | None = None


class AttentionMap(NamedTuple):
    """The attention of all layers and heads between two tracks.

    Attributes:
      queries, keys: names of the tracks.
      weights: float32 [N, H, L, M], the attention weights.
      norms, joint_norms: results of `reductions.value_norms`, float [N, H, L, M] and [N, L, M]. Both are None
        if the model has no named values, or changes the weighted values before the output projection.
    """

    queries: str
    keys: str
    weights: np.ndarray
    norms: np.ndarray | None = None
    joint_norms: np.ndarray | None = None

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys have the same positions. A predicted token is read one position later."""
        return self.queries == self.keys or (self.queries, self.keys) == ("predicted", "read")


class Prediction(NamedTuple):
    """The prediction of a model at one position, or for a whole image.

    Attributes:
      probability: probability of the token of the track "predicted", or of the most probable class.
      choices: the most probable labels with their probabilities, best first.
    """

    probability: float
    choices: list[tuple[str, float]]


class Observation(NamedTuple):
    """The record of what a model computes for one example.

    Attributes:
      title: the example in words.
      result: what the model makes of the example, such as a translation, which may be empty. None if the
        model makes nothing of an example.
      tracks: {name: `Track`}. "predicted" are the tokens or objects that the model predicts. "read" are, for
        each predicted token, the tokens that the model reads.
      attention: {kind: `AttentionMap`}, such as "encoder", "decoder" and "cross".
      predictions: for each element of the track "predicted", otherwise one for an image or none.
      beam: the search for the result, or None.
      made: name of the track whose picture the model made, or "" if it made none.
      predicted_ids: ids of the track "predicted" if its elements are tokens, otherwise None.
    """

    title: str
    result: str | None
    tracks: dict[str, Track]
    attention: dict[str, AttentionMap]
    predictions: list[Prediction]
    beam: Beam | None = None
    made: str = ""
    predicted_ids: Sequence[int] | None = None


@runtime_checkable
class Observes(Protocol):
    """A task whose model can be looked into. `tfm visualize` draws what it observes."""

    def default_examples(self) -> list[str]:
        """Returns the examples that are drawn if the user gives no example."""
        ...

    def observe(self, variables: Any, example: str, max_tokens: int) -> Observation:
        """Runs the model on an example of at most `max_tokens` tokens.

        Raises:
          UserError: if the example cannot be used, or its attention does not fit into the memory.
        """
        ...


@runtime_checkable
class ObservesTargets(Protocol):
    """A task that can observe its model while it reads and predicts given tokens instead of a search."""

    def observe_target(self, variables: Any, example: str, target: Sequence[int]) -> Observation:
        """Runs the model on an example and the ids of its target."""
        ...


@runtime_checkable
class FindsUnknown(Protocol):
    """A task that finds the words of an example that its vocabulary lacks.

    The attribute `tokenizer` of a task suffices if all of an example is text that the model reads.
    """

    def find_unknown(self, example: str) -> list[str]:
        """Returns the unknown words of an example."""
        ...


@runtime_checkable
class ObservesPictures(Protocol):
    """A task that can observe its model on the user's own pictures."""

    def read_picture(self, content: str | bytes, name: str) -> np.ndarray:
        """Returns a picture in the form in which the model reads the pictures of its data.

        Args:
          content: path of the file, or its content.
          name: what an error message calls the picture.

        Raises:
          UserError: if the picture cannot be used.
        """
        ...

    def observe_picture(self, variables: Any, picture: np.ndarray, title: str) -> Observation:
        """Runs the model on a picture that `read_picture` has returned."""
        ...


class Probabilities(NamedTuple):
    """The probabilities of labels and of the most probable ids.

    Attributes:
      of_labels: float [B, L], the probabilities of the labels.
      best: float [B, L, choices], the largest probabilities in descending order.
      ids: int [B, L, choices], the ids that have them.
    """

    of_labels: Any
    best: Any
    ids: Any


def is_picture_file(task: Any, example: str) -> bool:
    """Returns whether an example is the path of a picture for a task that observes pictures."""
    return isinstance(task, ObservesPictures) and os.path.isfile(example)


def observe_example(task: Any, variables: Any, example: str, max_tokens: int) -> Observation:
    """Runs the model of a task on an example. The example may be the path of a picture.

    Args:
      task: a task that implements `Observes`.
      variables: variables of its model.
      example: the example. It must not come from a page, because it may name any file.
      max_tokens: maximum number of tokens of an example.

    Raises:
      UserError: if the example cannot be used.
    """
    if is_picture_file(task, example):
        return task.observe_picture(variables, task.read_picture(example, example), os.path.basename(example))
    return task.observe(variables, example, max_tokens)


def image_track(image: np.ndarray, elements: int, grid: tuple[int, int] | None = None) -> Track:
    """Returns the track of the patches of an image.

    Args:
      image: float [height, width, C], from -1 (darkest) to 1 (brightest). One or two channels are drawn in
        grey, of more channels the first three in colour.
      elements: number of elements of the track. The elements before the patches are class tokens.
      grid: numbers of rows and columns of patches. None derives them from the aspect ratio of the image.
    """
    pixels = np.rint((np.clip(image, -1, 1) + 1) * 127.5).astype(np.uint8)
    rows, columns = grid or _find_grid(elements, image.shape[1] / image.shape[0])
    labels = ["class token"] * (elements - rows * columns)
    labels += [f"row {row}, column {column}" for row in range(rows) for column in range(columns)]
    picture = pixels[..., :3] if image.shape[-1] > 2 else pixels[..., 0]
    return Track("patch", labels, list(range(elements)), labels, picture, (rows, columns))


def label_track(name: str, elements: int) -> Track:
    """Returns the track of elements that have no place in an image, such as "latents 0", "latents 1"."""
    labels = [f"{name} {index}" for index in range(elements)]
    return Track(name, labels, list(range(elements)), labels)


def read_index(text: str, split: str, count: int) -> int:
    """Returns the index of one of the `count` images of a split.

    Raises:
      UserError: if the text is not the index of an image.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < count):
        raise UserError(
            f"Expected a picture, or the number of an image of the split '{split}' from 0 to {count - 1:,}, "
            f"got {text!r}."
        )
    return int(text)


def _find_grid(elements: int, aspect: float) -> tuple[int, int]:
    """Returns rows and columns of the largest grid of at most `elements` patches with an aspect ratio."""
    rows = max(1, round(math.sqrt(elements / aspect)))
    return rows, max(1, min(elements // rows, round(rows * aspect)))


def observe_tokens(
    model: Any,
    params: Any,
    tokenizer: Any,
    title: str,
    tokens: Mapping[str, tuple[str, Sequence[int]]],
    width: int = 0,
) -> Observation:
    """Runs a model of texts on one example.

    Args:
      model: a Linen module. Its arguments are the ids of all tracks except "predicted", in their order.
      params: parameters of the model.
      tokenizer: tokenizer of the model.
      title: title of the observation.
      tokens: {track: (what an element is, ids)}. The last track is "predicted".
      width: the ids are padded at least to this length, so that all examples share one compiled program.

    Returns:
      The observation of these ids, without a result and a beam.

    Raises:
      UserError: see `observe`.
    """
    *inputs, labels = (
        pad_ids([[*ids, *[PAD_ID] * (width - len(ids))]])[:, : model.config.max_length]
        for _, ids in tokens.values()
    )
    lengths = {name: len(ids) for name, (_, ids) in tokens.items()}
    probabilities, attention = observe(model, {"params": params}, *inputs, labels=labels, lengths=lengths)
    tokenizers = {"source": source_tokenizer(tokenizer)}
    tracks = {
        name: Track(element, *split_words(tokenizers.get(name, tokenizer), ids))
        for name, (element, ids) in tokens.items()
    }
    rows = zip(*(array[0, : lengths["predicted"]] for array in probabilities), strict=True)
    predictions = [
        Prediction(float(of_label), list(zip(label_tokens(tokenizer, ids), best.tolist(), strict=True)))
        for of_label, best, ids in rows
    ]
    predicted_ids = list(tokens["predicted"][1])
    return Observation(title, None, tracks, attention, predictions, predicted_ids=predicted_ids)


def observe(
    model: Any, variables: Any, *inputs: Any, labels: Any, lengths: Mapping[str, int] | None = None
) -> tuple[Probabilities, dict[str, AttentionMap]]:
    """Runs a model on one example, and reads its attention.

    Args:
      model: a Linen module. Its attribute `attention_points` names the attention weights of each kind, and
        `attention_tracks` the tracks of the queries and of the keys. A model without them has no attention.
      variables: variables of the model.
      *inputs: arguments of the call, a batch of one row.
      labels: ids whose probabilities are returned, int [1, L]. The model, or the first of several outputs,
        returns the logits [1, L, V].
      lengths: {track: number of elements without padding}. None means that nothing is padded.

    Returns:
      The `Probabilities` and {kind: `AttentionMap`}, as NumPy arrays.

    Raises:
      UserError: if the attention does not fit into the memory, the model does not compute the attention
        weights that it names, or the probabilities are NaN.
    """
    _, shapes = jax.eval_shape(functools.partial(_forward, model), variables, inputs, labels)
    arrays = [read.weights for read in shapes.values()]
    needed = ATTENTION_COPIES * sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
    check_estimate("The attention of an example", needed, host_memory(), "shorten the example")
    probabilities, reads = fetch(_forward(model, variables, inputs, labels))
    check_probabilities(probabilities.of_labels)
    attention = {}
    for kind, (queries, keys) in _tracks_of(model).items():
        weights = reads[kind].weights[:, 0]
        if lengths is not None:
            weights = weights[..., : lengths[queries], : lengths[keys]]
        attention[kind] = _add_norms(AttentionMap(queries, keys, weights.astype(np.float32)), reads[kind])
    return probabilities, attention


def check_probabilities(values: np.ndarray) -> None:
    """Raises a UserError if probabilities, or scores that are computed from them, are NaN."""
    if np.isnan(values).any():
        raise UserError(
            "Expected probabilities that are numbers, got NaN. The parameters are damaged, or training "
            "diverged. Use another checkpoint."
        )


def cut_examples(tokenizer: Any, texts: Iterable[str], limit: int) -> list[str]:
    """Returns the first `limit` tokens of each text as text. Leaves out beginnings that are blank."""
    begins = (tokenizer.decode(ids[:limit]) for ids in tokenizer.encode(texts))
    # A cut within the bytes of a character leaves a replacement character.
    stripped = (text.rstrip("\ufffd").strip() for text in begins)
    return [text for text in stripped if text]


def check_length(tokens: int, max_tokens: int) -> None:
    """Raises a UserError if an example has more than `max_tokens` tokens."""
    if tokens > max_tokens:
        raise UserError(
            f"Expected an example of at most {max_tokens:,} tokens, got {tokens:,}. Shorten it, or increase "
            "--max_tokens up to the positions of the model."
        )


class _Read(NamedTuple):
    """The arrays of one kind of attention.

    Attributes:
      weights: [N, B, H, L, M].
      values: [N, B, M, G, V], and None if the model does not name them.
      kernels: kernels of the output projections [N, H, V, D], and None without values.
    """

    weights: jax.Array
    values: jax.Array | None = None
    kernels: jax.Array | None = None


@functools.partial(jax.jit, static_argnums=0)
def _forward(
    model: Any, variables: Any, inputs: tuple[Any, ...], labels: jax.Array
) -> tuple[Probabilities, dict[str, _Read]]:
    """Returns the probabilities of the labels, and a `_Read` of each kind of attention of the model."""
    points = {kind: model.attention_points[kind] for kind in _tracks_of(model)}
    recorder = Recorder([*points.values(), "*.value", "*.weighted_values"])
    with activate(recorder):
        logits = jax.tree.leaves(model.apply(variables, *inputs, train=False))[0]
    probabilities = jax.nn.softmax(logits.astype(jnp.float32))
    of_labels = jnp.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0]
    best = jax.lax.top_k(probabilities, min(MAX_CHOICES, logits.shape[-1]))
    reads = {
        kind: _stack_layers(recorder.reads, variables["params"], point) for kind, point in points.items()
    }
    return Probabilities(of_labels, *best), reads


def _tracks_of(model: Any) -> Mapping[str, tuple[str, str]]:
    """Returns {kind of attention: (track of the queries, track of the keys)} of a model.

    Raises:
      UserError: if the model does not name the weights of a kind.
    """
    tracks = getattr(model, "attention_tracks", {})
    if missing := tracks.keys() - getattr(model, "attention_points", {}).keys():
        raise UserError(f"attention_tracks has {min(missing)!r}, which attention_points of the model lacks.")
    return tracks


def _stack_layers(reads: Mapping[str, jax.Array], params: Any, point: str) -> _Read:
    """Returns the attention of all layers that a point names.

    It has no values if a layer lacks named values or a kernel for each head, for example because its
    attention is a module from outside tfm. It has none either if a layer changes the weighted values before
    the output projection, because the norms of `AttentionMap` leave this out.

    Raises:
      UserError: if the model has no attention weights of this name.
    """
    names = [name for name in reads if matches(name, point)]
    check_attention(point, names)
    weights = jnp.stack([reads[name] for name in names])
    values, kernels = [], []
    for name in names:
        *path, last = name.split(".")
        value = reads.get(".".join([*path, last.replace("weights", "value")]))
        is_transformed = ".".join([*path, last.replace("weights", "weighted_values")]) in reads
        module = functools.reduce(lambda tree, key: tree.get(key, {}), path, params)
        kernel = module.get("output", {}).get("kernel")
        if value is None or kernel is None or is_transformed:
            return _Read(weights)
        if kernel.shape[:2] != (weights.shape[2], value.shape[-1]):
            return _Read(weights)
        values.append(value)
        kernels.append(kernel)
    return _Read(weights, jnp.stack(values), jnp.stack(kernels))


def _add_norms(attention: AttentionMap, read: _Read) -> AttentionMap:
    """Returns the map with the norms of the weighted values, if the model names its values."""
    if read.values is None or read.kernels is None:
        return attention
    _, heads, _, keys = attention.weights.shape
    groups = read.values[:, 0, :keys]
    values = np.repeat(groups, heads // groups.shape[2], axis=2).astype(np.float32)
    kernels = np.asarray(read.kernels).astype(np.float32)
    norms, joint_norms = reductions.value_norms(attention.weights, values, kernels)
    return attention._replace(norms=norms, joint_norms=joint_norms)
