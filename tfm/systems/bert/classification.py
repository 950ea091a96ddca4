"""Fine-tuning of BERT: classes and numbers of texts or of pairs of texts, and tags of words.

The head of the model decides: "classes" has a label for each text or pair of texts, and "tags" for each word.
Their loss is the cross-entropy. "regression" has a number for each text or pair of texts, and its loss is the
squared error. See `tfm.systems.bert.labelled_texts` for the batch.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import check_fields, field
from tfm.data.batches.schedule import Batches, PrefetchedData
from tfm.data.config import VOCABULARY_FILE, remove_paths
from tfm.data.data_errors import collect, raise_all
from tfm.data.inspection import Summary
from tfm.data.source import Source
from tfm.data.sources.opening import open_pairs
from tfm.data.sources.splits import list_splits
from tfm.data.tokenizers.files import plan_size
from tfm.data.tokenizers.unknown_text import find_unknown_parts
from tfm.decoding.batches import pad_ids
from tfm.decoding.protocol import as_ensemble
from tfm.devices.mesh import fetch, place_rows
from tfm.errors import UserError
from tfm.evaluation.classification_metrics import classification_scores
from tfm.evaluation.score import Score
from tfm.interpret.observation import Observation, Prediction, Track, check_length, cut_examples, observe
from tfm.interpret.words import split_words
from tfm.losses import smoothed_cross_entropy
from tfm.systems.bert.label_statistics import summarize_labels
from tfm.systems.bert.labelled_texts import (
    MAX_SHOWN_LABELS,
    NO_LABEL,
    UNKNOWN,
    LabelledConfig,
    LabelledText,
    LabelledTexts,
    count_labels,
    cut_texts,
    encode_numbers,
    encode_rows,
    read_numbers,
    sort_labels,
)
from tfm.systems.bert.mask import add_mask
from tfm.systems.bert.masked_pairs import SPECIAL_TOKENS, join_texts
from tfm.systems.bert.model import BertConfig
from tfm.systems.bert.scores import (
    EntityScores,
    are_entity_tags,
    class_scores,
    entity_scores,
    number_scores,
    require_seqeval,
    summarize_classes,
    summarize_numbers,
)
from tfm.training.assets import LABELS_FILE, prepare_tokenizer, read_labels, write_labels
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import add_sums, apply_model, means
from tfm.training.task import Batch, Best, Context, Evaluation, LossOutput, Report, Task, Variables

SEPARATOR = "|||"  # between the two texts of an example to observe
log = logging.getLogger(__name__)
DIGITS = 4  # significant digits of a predicted number
DEFAULT_EXAMPLES, DEFAULT_TOKENS = 2, 40  # number of texts to observe, and of the tokens of each


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that labels texts. The defaults are BERT base with two classes."""

    task: str = tasks.task_field("text_classification")
    model: Any = models.model_field(BertConfig(head="classes"))
    data: LabelledConfig = field(LabelledConfig, "Texts with their labels, and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    SCORES: ClassVar[tuple[str, ...]] = (
        *("accuracy", "accuracy of *", "cross-entropy"),
        *("Matthews correlation", "macro F1", "F1 of *"),  # of classes
        *("entity precision", "entity recall", "entity F1", "entity F1 of *"),  # of tags such as B-PER
        *("Pearson correlation", "Spearman correlation", "squared error"),  # of numbers
    )
    output_suffix: ClassVar[str] = "labels"  # of the file names SPLIT.labels.hypotheses: predictions

    def __post_init__(self):
        check_fields(self)
        head = getattr(self.model, "head", "")
        if head not in ("classes", "tags", "regression"):
            raise UserError(
                f"The model '{self.model.name}' does not label texts. Set model.name=bert and "
                f"model.head=classes, tags or regression, got {head!r}."
            )
        if head != "tags" and self.data.kind == "conll":
            raise UserError(
                f"data.kind=conll has a tag for each word, but model.head is {head!r}. Set model.head=tags."
            )
        if head == "tags" and self.data.second_column:
            raise UserError(
                "model.head=tags labels the words of one text, but data.second_column is "
                f"{self.data.second_column!r}. Leave it empty, or set model.head=classes."
            )
        models.check_positions(self.model, "data.max_length", self.data.max_length)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))


class LabelledData(PrefetchedData):
    """The training and validation texts of a run. Implements `tfm.training.task.Data`."""

    def __init__(self, task: "TextClassification"):
        self.validation, fingerprint = task.open_split("validation")
        texts, of_training = task.open_split("train")
        batches = Batches([texts], host_index=jax.process_index(), host_count=jax.process_count())
        super().__init__(batches, task.assets() | {"train": of_training, "validation": fingerprint})

    def count(self, batch: Batch) -> int:
        """Returns the number of texts of a host batch, without padding."""
        return int((batch["tokens"][:, 0] > 0).sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the texts."""
        return [("texts", f"{self.batches.pieces:,} to train on, {self.validation.pieces:,} to validate")]


class TextClassification(Task):
    """A task that trains a classifier of texts or of their words.

    Attributes:
      config: `Config`.
      tokenizer: a `tfm.systems.bert.mask.MaskTokenizer`, so that a pretrained model fits.
      label_names: names of the classes, by label.
      model: the Linen module.
      d_model, best, unit, averages_models: see `tfm.training.task.Task`.
    """

    best = Best("validation/accuracy", "max")
    validation_loss = "validation/nll"
    unit = "texts"
    example_help = "Your own text. If the model reads pairs, ||| stands between the two texts."
    example_has_lines = True
    averages_models = True

    def __init__(self, config: Config, tokenizer: Any, label_names: Sequence[str], fingerprint: str):
        self.config, self.tokenizer = config, add_mask(tokenizer)
        self.label_names = list(label_names)
        self._fingerprint = fingerprint
        find = models.find(config.model.name).Model
        self.model = find(config.model, vocabulary_size=len(self.tokenizer))
        self.d_model = getattr(config.model, "d_model", None)

    @property
    def validation_scores(self) -> tuple[str, ...]:  # type: ignore[override]
        """The loss, the accuracy, and F1 and Matthews correlation of classes, or the F1 of entities."""
        names = ["nll", "accuracy"]
        if not self._has_tags:
            names += ["macro_f1", "matthews", *(["f1"] if self.config.model.classes == 2 else [])]
        elif are_entity_tags(self.label_names):
            names.append("entity_f1")
        return tuple(f"validation/{name}" for name in names)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.ones((1, 1), jnp.int32), train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy per label. The metrics are "nll" and "accuracy"."""
        labels, weights = self._labels(batch)
        inputs = batch["tokens"], batch["types"]
        logits, state = apply_model(self.model, variables, *inputs, context=context)
        nll = smoothed_cross_entropy(logits, labels, weights, smoothing=0.0)
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        return LossOutput({"loss": nll}, {"nll": nll, "accuracy": (correct, nll[1])}, state)

    def _labels(self, batch: Batch) -> tuple[Any, Any]:
        """Returns the labels and the weights in the shape of the model's output, [B] or [B, L]."""
        labels, weights = batch["labels"], batch["weights"].astype(np.float32)
        return (labels, weights) if self._has_tags else (labels[:, 0], weights[:, 0])

    def open_data(self) -> LabelledData:
        """Opens and tokenizes the training and validation texts."""
        return LabelledData(self)

    def open_split(self, split: str) -> tuple[LabelledTexts, str]:
        """Returns the texts of a split and the fingerprint of their source.

        Raises:
          UserError: if the split cannot be read, or its labels do not fit; see `encode_rows`.
        """
        source = open_pairs(self.config.data, split)
        try:
            texts = self._encode(source)
        except UserError as error:
            raise UserError(f"The split '{split}': {error}") from None
        return LabelledTexts(texts, self.config.data, self.config.training.seed), source.fingerprint

    def _encode(self, source: Source) -> list[LabelledText]:
        """Returns the arrays of all rows of a split."""
        return encode_rows(
            source[:],
            self.tokenizer,
            self.label_names,
            self.config.data.max_length,
            self._has_tags,
            source.locate,
        )

    @property
    def _has_tags(self) -> bool:
        return self.config.model.head == "tags"

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer and of the names of the classes."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint, LABELS_FILE: self._fingerprint}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the loss and the scores of the validation split. `validation_scores` has their names."""
        sums: dict[str, tuple[float, float]] = {}
        labelled: list[tuple[np.ndarray, np.ndarray]] = []  # predictions and labels of the rows
        for numbers, batch in data.validation.in_order():
            predictions, metrics = fetch(self._predict(variables, place_rows(batch, like=variables)))
            add_sums(sums, metrics)
            labels, weights = self._labels(batch)
            for row in range(len(numbers)):
                counts = weights[row] > 0
                labelled.append((np.atleast_1d(predictions[row][counts]), np.atleast_1d(labels[row][counts])))
        scores = means(sums) | self._summarize(*zip(*labelled, strict=True))
        return Evaluation({f"validation/{name}": value for name, value in scores.items()})

    @functools.partial(jax.jit, static_argnums=0)
    def _predict(self, variables: Variables, batch: Batch) -> tuple[jax.Array, Any]:
        """Returns the most probable labels, int [B] or [B, L], and the metrics of the loss."""
        logits = self.model.apply(variables, batch["tokens"], batch["types"], train=False)
        return logits.argmax(-1), self.loss(variables, batch, Context()).metrics

    def _summarize(self, predictions: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the scores of an evaluation that need the predictions of all rows."""
        if not self._has_tags:
            classes = self.config.model.classes
            return summarize_classes(np.concatenate(predictions), np.concatenate(labels), classes)
        if not are_entity_tags(self.label_names):
            return {}
        _, _, f1 = EntityScores.of(self._name_tags(predictions), self._name_tags(labels)).overall
        return {"entity_f1": f1}

    def _name_tags(self, rows: Sequence[np.ndarray]) -> list[list[str]]:
        """Returns the names of the tags of sentences."""
        return [[self.label_names[label] for label in row] for row in rows]

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the predicted labels in the form of the data.

        The scores are the accuracies and the cross-entropy. Classes also have F1 and the Matthews
        correlation. Tags that mark entities also have precision, recall and F1 of the entities.

        Raises:
          UserError: see `open_split`.
        """
        texts, identity = self.open_split(split)
        began = time.monotonic()
        counted: list[tuple[np.ndarray, np.ndarray]] = []  # log-probabilities and labels of the rows
        order: list[int] = []
        for numbers, batch in texts.in_order():
            placed = place_rows((batch["tokens"], batch["types"]), like=variables)
            log_probabilities = fetch(self._log_probabilities(variables, placed))
            labels, weights = self._labels(batch)
            for row, number in enumerate(numbers.tolist()):
                counts = weights[row] > 0
                values = log_probabilities[row][counts].reshape(-1, len(self.label_names))
                counted.append((values, np.atleast_1d(labels[row][counts])))
                order.append(number)
        rate = len(order) / (time.monotonic() - began)
        predictions = {number: values.argmax(-1) for number, (values, _) in zip(order, counted, strict=True)}
        examples = [
            {"text": " | ".join(parts), "label": label, "prediction": self._name(predictions[number], label)}
            for number, (*parts, label) in enumerate(open_pairs(self.config.data, split))
        ]
        outputs = [example["prediction"] for example in examples]
        yield Report(outputs, self._score(counted), examples, {}, rate, identity)

    def _score(self, counted: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Score]:
        """Returns the scores of the log-probabilities and the labels of all rows."""
        log_probabilities, labels = (np.concatenate(arrays) for arrays in zip(*counted, strict=True))
        scores = classification_scores(log_probabilities, labels, self.label_names)
        if not self._has_tags:
            return scores + class_scores(log_probabilities.argmax(-1), labels, self.label_names)
        if not are_entity_tags(self.label_names):
            return scores
        predicted = self._name_tags([values.argmax(-1) for values, _ in counted])
        return scores + entity_scores(predicted, self._name_tags([labels for _, labels in counted]))

    def _name(self, predictions: np.ndarray, label: str) -> str:
        """Returns the names of predicted labels in the form of a label of the data."""
        names = iter([self.label_names[prediction] for prediction in predictions])
        if not self._has_tags:
            return next(names)
        return " ".join(NO_LABEL if tag == NO_LABEL else next(names) for tag in label.split())

    @functools.partial(jax.jit, static_argnums=0)
    def _log_probabilities(self, variables: Any, inputs: Any) -> jax.Array:
        """Returns the log of the mean of the probabilities of all models, float32 [B, C] or [B, L, C]."""
        logits = [self.model.apply(member, *inputs, train=False) for member in as_ensemble(variables)]
        log_probabilities = jax.nn.log_softmax(jnp.stack(logits).astype(jnp.float32))
        return jax.nn.logmeanexp(log_probabilities, axis=0)

    def default_examples(self) -> list[str]:
        """Returns the beginnings of some validation texts. An export on another machine may have none."""
        try:
            rows = open_pairs(self.config.data, "validation")[: 2 * DEFAULT_EXAMPLES]
        except UserError:
            return []
        columns = len(self.config.data.text_columns)
        limit = min(DEFAULT_TOKENS, self.config.data.max_length - SPECIAL_TOKENS) // columns
        examples = [cut_examples(self.tokenizer, row[:-1], limit) for row in rows]
        return [f" {SEPARATOR} ".join(each) for each in examples if len(each) == columns][:DEFAULT_EXAMPLES]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records what the model computes for a text, or for two texts with "|||" between them.

        Args:
          variables: variables of the model.
          example: the texts. Texts without tags are cut to `data.max_length` tokens, as in training.
          max_tokens: maximum number of tokens, including BOS and EOS.

        Raises:
          UserError: if a text is blank, the tokens are too many, or their attention does not fit into the
            memory.
        """
        tokens, types = self._read_example(example, max_tokens)
        inputs = self._pad_example(tokens, types)
        labels = np.zeros(inputs[0].shape if self._has_tags else 1, int)  # the true labels are unknown
        lengths = {"read": len(tokens)}
        probabilities, attention = observe(self.model, variables, *inputs, labels=labels, lengths=lengths)
        read = Track("piece", *split_words(self.tokenizer, tokens.tolist()))
        ids, values = (np.atleast_2d(x[0])[: len(tokens)] for x in (probabilities.ids, probabilities.best))
        rows = zip(ids, values, strict=True)
        choices = [
            [(self.label_names[i], value) for i, value in zip(*row, strict=True)]
            for row in ((ids.tolist(), best.tolist()) for ids, best in rows)
        ]
        predictions = [Prediction(each[0][1], each) for each in choices]
        best = [each[0][0] for each in choices]
        if not self._has_tags:
            return Observation(example, best[0], {"read": read}, attention, predictions)
        tagged = Track("tag", best, list(range(len(best))), best)
        return Observation(example, None, {"read": read, "predicted": tagged}, attention, predictions)

    def find_unknown(self, example: str) -> list[str]:
        """See `tfm.interpret.observation.FindsUnknown`. The separator of pairs is no text."""
        text = example.replace(SEPARATOR, " ") if self.config.data.second_column else example
        return find_unknown_parts(self.tokenizer, text)

    def _read_example(self, example: str, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens and the types of an example to observe; see `observe`."""
        texts = [" ".join(example.split()) if self._has_tags else example]
        if self.config.data.second_column:
            texts = [text.strip() for text in example.split(SEPARATOR)]
        if len(texts) != len(self.config.data.text_columns) or not all(map(str.strip, texts)):
            columns = " and ".join(self.config.data.text_columns)
            pair = f"two texts ({columns}) with {SEPARATOR} between them"
            wanted = pair if self.config.data.second_column else "a text"
            raise UserError(f"Expected {wanted} to read and draw, got {example!r}.")
        encoded = self.tokenizer.encode(texts)
        if not self._has_tags:
            encoded = cut_texts(encoded, self.config.data.max_length)
        tokens, types = join_texts(*encoded)
        check_length(len(tokens), min(max_tokens, self.model.config.max_length or max_tokens))
        return tokens, types

    def _pad_example(self, *rows: np.ndarray) -> list[np.ndarray]:
        """Returns the tokens and the types of an example as a batch whose width many examples share."""
        return [pad_ids([row.tolist()])[:, : self.model.config.max_length] for row in rows]


class TextRegression(TextClassification):
    """A task that trains a model to predict a number for each text or pair of texts."""

    best = Best("validation/pearson", "max")
    validation_scores = tuple(f"validation/{name}" for name in ("squared_error", "pearson", "spearman"))
    validation_loss = "validation/squared_error"

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the mean of the squared errors. The metric is "squared_error"."""
        labels, weights = self._labels(batch)
        inputs = batch["tokens"], batch["types"]
        numbers, state = apply_model(self.model, variables, *inputs, context=context)
        errors = jnp.square(numbers[:, 0].astype(jnp.float32) - labels) * weights
        error = errors.sum(), weights.sum()
        return LossOutput({"loss": error}, {"squared_error": error}, state)

    def _encode(self, source: Source) -> list[LabelledText]:
        """Returns the arrays of all rows of a split."""
        return encode_numbers(source[:], self.tokenizer, self.config.data.max_length, source.locate)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint}

    @functools.partial(jax.jit, static_argnums=0)
    def _predict(self, variables: Variables, batch: Batch) -> tuple[jax.Array, Any]:
        """Returns the predicted numbers [B] and the metrics of the loss."""
        numbers = self._numbers(variables, (batch["tokens"], batch["types"]))
        return numbers, self.loss(variables, batch, Context()).metrics

    @functools.partial(jax.jit, static_argnums=0)
    def _numbers(self, variables: Any, inputs: Any) -> jax.Array:
        """Returns the mean of the numbers that all models predict, float32 [B]."""
        numbers = [self.model.apply(member, *inputs, train=False) for member in as_ensemble(variables)]
        return jnp.stack(numbers).astype(jnp.float32).mean(0)[:, 0]

    def _summarize(self, predictions: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the correlations of the predictions of all rows with the labels."""
        return summarize_numbers(np.concatenate(predictions), np.concatenate(labels))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the predicted numbers with four significant digits.

        For the scores, see `number_scores`.

        Raises:
          UserError: see `open_split`.
        """
        texts, identity = self.open_split(split)
        began = time.monotonic()
        predictions, labels = np.zeros((2, texts.pieces), np.float32)
        for numbers, batch in texts.in_order():
            placed = place_rows((batch["tokens"], batch["types"]), like=variables)
            predictions[numbers] = fetch(self._numbers(variables, placed))[: len(numbers)]
            labels[numbers] = batch["labels"][: len(numbers), 0]
        rate = texts.pieces / (time.monotonic() - began)
        examples = [
            {"text": " | ".join(parts), "label": label, "prediction": f"{prediction:.{DIGITS}g}"}
            for (*parts, label), prediction in zip(
                open_pairs(self.config.data, split), predictions.tolist(), strict=True
            )
        ]
        outputs = [example["prediction"] for example in examples]
        yield Report(outputs, number_scores(predictions, labels), examples, {}, rate, identity)

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records what the model computes for a text or a pair of texts. The result is the number.

        There are no predictions. For the arguments and the errors, see `TextClassification.observe`.
        """
        tokens, types = self._read_example(example, max_tokens)
        inputs = self._pad_example(tokens, types)
        labels, lengths = np.zeros(1, int), {"read": len(tokens)}
        _, attention = observe(self.model, variables, *inputs, labels=labels, lengths=lengths)
        (number,) = fetch(self._numbers(variables, tuple(inputs)))
        read = Track("piece", *split_words(self.tokenizer, tokens.tolist()))
        return Observation(example, f"{number:.{DIGITS}g}", {"read": read}, attention, [])


def plan(config: Config) -> TextClassification:
    """Returns the task of a run that has no tokenizer and no names of classes yet.

    Raises:
      UserError: if the user's tokenizer cannot be used.
    """
    return _make_task(config, range(plan_size(config.data)), [], "")


def _make_task(config: Config, tokenizer: Any, names: Sequence[str], fingerprint: str) -> TextClassification:
    """Returns the task for the head of the model."""
    kind = TextRegression if config.model.head == "regression" else TextClassification
    return kind(config, tokenizer, names, fingerprint)


def create(config: Config, workdir: str, *, new: bool = True) -> TextClassification:
    """Creates the task of a run. A new run writes the labels of its splits.

    Args:
      config, workdir, new: see `tfm.training.assets.prepare_tokenizer`.

    Raises:
      UserError: if the data or the tokenizer cannot be used, the model has a different number of classes, or
        the labels are entities and the package for their scores is missing.
    """
    tokenizer = prepare_tokenizer(config, workdir, plan, new=new)
    if config.model.head == "regression":
        if new:
            check_numbers(config)
        return _make_task(config, tokenizer, [], "")
    path = os.path.join(workdir, LABELS_FILE)
    if new and not os.path.exists(path):
        names = find_names(config)
        if config.model.head == "tags" and are_entity_tags(names):
            require_seqeval()
        _check_splits(_make_task(config, tokenizer, names, ""))
        write_labels(path, names)
    return _make_task(config, tokenizer, *read_labels(path, config.model.classes))


def _check_splits(task: TextClassification) -> None:
    """Encodes all splits, and raises a UserError with all problems."""
    problems: list[str] = []
    for split in list_splits(task.config.data, open_pairs):
        with collect(problems):
            task.open_split(split)
    raise_all(problems)


def check_numbers(config: Config) -> None:
    """Checks the labels of all splits of a new run that predicts numbers.

    Raises:
      UserError: if a label is no number, or all labels of the training split are equal.
    """
    problems: list[str] = []
    for split in list_splits(config.data, open_pairs):
        with collect(problems), _naming(split):
            source = open_pairs(config.data, split)
            numbers = read_numbers(source[:], source.locate)
            if split == "train" and len(set(numbers)) == 1:
                raise UserError(
                    f"All labels are {numbers[0]:g}, so there is nothing to learn. Check the labels."
                )
    raise_all(problems)


@contextlib.contextmanager
def _naming(split: str) -> Iterator[None]:
    """Adds the name of the split to a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"The split '{split}': {error}") from None


def inspect_labels(config: Config, splits: Sequence[str]) -> dict[str, Summary]:
    """Returns {split: statistics of its labels}, for `tfm data`.

    Raises:
      UserError: if a split cannot be read.
    """
    labels = {split: [row[-1] for row in open_pairs(config.data, split)] for split in splits}
    return summarize_labels(labels, config.model.head, config.data.label_column)


def find_names(config: Config) -> list[str]:
    """Returns the names of the classes of a new run: the labels of all its splits.

    A warning names the classes that have at most one example in the training split.

    Raises:
      UserError: if the model has a different number of classes, there are fewer than two, or a row has no
        label.
    """
    has_tags, classes = config.model.head == "tags", config.model.classes
    labels: dict[str, Counter[str]] = {}
    problems: list[str] = []
    for split in list_splits(config.data, open_pairs):
        with collect(problems), _naming(split):
            source = open_pairs(config.data, split)
            labels[split] = count_labels(source[:], has_tags, source.locate)
    raise_all(problems)
    names = sort_labels(set().union(*labels.values()))
    if len(names) < 2:
        raise UserError(
            f"Expected labels of at least two classes, but all rows have "
            f"{', '.join(names) or 'no label'}. Check data.label_column ({config.data.label_column})."
        )
    if len(names) != classes:
        raise UserError(_describe_difference(labels, names, classes))
    for count, shown in (0, "no example"), (1, "only one example"):
        if rare := [name for name in names if labels["train"][name] == count]:
            log.warning(
                "The training split has %s of the class %s, so the model can hardly learn it.",
                shown,
                ", ".join(rare[:MAX_SHOWN_LABELS]),
            )
    return names


def _describe_difference(labels: Mapping[str, Counter[str]], names: Sequence[str], classes: int) -> str:
    """Returns the error message of a model that has a different number of classes than the labels."""
    trained = labels["train"].keys()
    shown = ", ".join(sort_labels(trained)[:MAX_SHOWN_LABELS])
    others = {
        split: sort_labels(found.keys() - trained)
        for split, found in labels.items()
        if found.keys() - trained
    }
    if not others:
        return (
            f"The training split has {len(names):,} classes ({shown}) and the model {classes:,}. Set "
            f"model.classes to {len(names)}."
        )
    more = "; ".join(
        f"the split '{split}' also has {', '.join(found[:MAX_SHOWN_LABELS])}"
        for split, found in others.items()
    )
    advice = f"Correct the labels, or set model.classes to {len(names)}."
    if any(str(UNKNOWN) in found for found in others.values()):
        advice += (
            f" In test splits without labels, {UNKNOWN} stands for an unknown label: set data.test to "
            "another split, or leave data.test empty."
        )
    return (
        f"The splits have {len(names):,} classes and the model {classes:,}. The training split has {shown}; "
        f"{more}. {advice}"
    )


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split."""
    return open_pairs(config.data, split).fingerprint
