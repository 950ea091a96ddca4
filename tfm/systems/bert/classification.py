"""Classification of texts, of pairs of texts or of words with cross-entropy, such as BERT's fine-tuning.

The head of the model decides: "classes" has a label for each text or pair of texts, "tags" for each word. See
`tfm.systems.bert.labelled_texts` for the batch.
"""

import dataclasses
import functools
import logging
import os
import time
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
from tfm.data.sources.opening import open_pairs
from tfm.data.sources.splits import list_splits
from tfm.data.tokenizers.files import plan_size
from tfm.decoding.protocol import as_ensemble
from tfm.devices.mesh import fetch, place_rows
from tfm.errors import UserError
from tfm.evaluation.classification_metrics import classification_scores
from tfm.interpret.observation import Observation, Prediction, Track, check_length, cut_examples, observe
from tfm.interpret.words import split_words
from tfm.losses import smoothed_cross_entropy
from tfm.systems.bert.labelled_texts import (
    MAX_SHOWN_LABELS,
    NO_LABEL,
    LabelledConfig,
    LabelledTexts,
    cut_texts,
    encode_rows,
    find_labels,
    sort_labels,
)
from tfm.systems.bert.mask import add_mask
from tfm.systems.bert.masked_pairs import SPECIAL_TOKENS, join_texts
from tfm.systems.bert.model import BertConfig
from tfm.training.assets import LABELS_FILE, prepare_tokenizer, read_labels, write_labels
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model, mean_metrics
from tfm.training.task import Batch, Best, Context, Evaluation, LossOutput, Report, Task, Variables

SEPARATOR = "|||"  # between the two texts of an example to observe
UNKNOWN = "-1"  # the label of a text whose label is not published
log = logging.getLogger(__name__)
DEFAULT_EXAMPLES, DEFAULT_TOKENS = 2, 40  # number of texts to observe, and of the tokens of each


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a run that classifies texts. The defaults are BERT base with two classes."""

    task: str = tasks.task_field("text_classification")
    model: Any = models.model_field(BertConfig(head="classes"))
    data: LabelledConfig = field(LabelledConfig, "Texts with their labels, and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    SCORES: ClassVar[tuple[str, ...]] = ("accuracy", "accuracy of *", "cross-entropy")
    output_suffix: ClassVar[str] = "labels"  # of the file names SPLIT.labels.hypotheses: predictions

    def __post_init__(self):
        check_fields(self)
        head = getattr(self.model, "head", "")
        if head not in ("classes", "tags"):
            raise UserError(
                f"The model '{self.model.name}' does not classify texts. Set model.name=bert and "
                f"model.head=classes or tags, got {head!r}."
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
    validation_scores = ("validation/nll", "validation/accuracy")
    validation_loss = "validation/nll"
    unit = "texts"
    averages_models = True

    def __init__(self, config: Config, tokenizer: Any, label_names: Sequence[str], fingerprint: str):
        self.config, self.tokenizer = config, add_mask(tokenizer)
        self.label_names = list(label_names)
        self._fingerprint = fingerprint
        find = models.find(config.model.name).Model
        self.model = find(config.model, vocabulary_size=len(self.tokenizer))
        self.d_model = getattr(config.model, "d_model", None)

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
        source, data = open_pairs(self.config.data, split), self.config.data
        try:
            texts = encode_rows(source[:], self.tokenizer, self.label_names, data.max_length, self._has_tags)
        except UserError as error:
            raise UserError(f"The split '{split}': {error}") from None
        return LabelledTexts(texts, data, self.config.training.seed), source.fingerprint

    @property
    def _has_tags(self) -> bool:
        return self.config.model.head == "tags"

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer and of the names of the classes."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint, LABELS_FILE: self._fingerprint}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the loss and the accuracy of the validation split."""
        scores = mean_metrics(self, variables, (batch for _, batch in data.validation.in_order()))
        return Evaluation({f"validation/{name}": value for name, value in scores.items()})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the predicted labels, the cross-entropy and the accuracies."""
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
        log_probabilities, labels = (np.concatenate(arrays) for arrays in zip(*counted, strict=True))
        examples = [
            {"text": " | ".join(parts), "label": label, "prediction": self._name(predictions[number], label)}
            for number, (*parts, label) in enumerate(open_pairs(self.config.data, split))
        ]
        outputs = [example["prediction"] for example in examples]
        scores = classification_scores(log_probabilities, labels, self.label_names)
        yield Report(outputs, scores, examples, {}, rate, identity)

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
        texts = [" ".join(example.split()) if self._has_tags else example]
        if self.config.data.second_column:
            texts = [text.strip() for text in example.split(SEPARATOR)]
        if len(texts) != len(self.config.data.text_columns) or not all(map(str.strip, texts)):
            raise UserError(
                f"Expected {' and '.join(self.config.data.text_columns)} of the data as text to read and draw"
                f"{', with ||| between them' if self.config.data.second_column else ''}, got {example!r}."
            )
        encoded = self.tokenizer.encode(texts)
        if not self._has_tags:
            encoded = cut_texts(encoded, self.config.data.max_length)
        tokens, types = join_texts(*encoded)
        check_length(len(tokens), min(max_tokens, self.model.config.max_length or max_tokens))
        shape = (1, len(tokens)) if self._has_tags else (1,)
        labels = np.zeros(shape, int)  # the true labels are unknown
        probabilities, attention = observe(self.model, variables, tokens[None], types[None], labels=labels)
        read = Track("piece", *split_words(self.tokenizer, tokens.tolist()))
        rows = zip(np.atleast_2d(probabilities.ids[0]), np.atleast_2d(probabilities.best[0]), strict=True)
        choices = [
            [(self.label_names[i], value) for i, value in zip(*row, strict=True)]
            for row in ((ids.tolist(), best.tolist()) for ids, best in rows)
        ]
        predictions = [Prediction(each[0][1], each) for each in choices]
        best = [each[0][0] for each in choices]
        if not self._has_tags:
            return Observation(example, best[0], {"read": read}, attention, predictions)
        tagged = Track("tag", best, list(range(len(best))), best)
        return Observation(example, "", {"read": read, "predicted": tagged}, attention, predictions)


def plan(config: Config) -> TextClassification:
    """Returns the task of a run that has no tokenizer and no names of classes yet.

    Raises:
      UserError: if the user's tokenizer cannot be used.
    """
    return TextClassification(config, range(plan_size(config.data)), [], "")


def create(config: Config, workdir: str, *, new: bool = True) -> TextClassification:
    """Creates the task of a run. A new run writes the labels of its splits.

    Args:
      config, workdir, new: see `tfm.training.assets.prepare_tokenizer`.

    Raises:
      UserError: if the data or the tokenizer cannot be used, or the model has a different number of classes.
    """
    tokenizer = prepare_tokenizer(config, workdir, plan, new=new)
    path = os.path.join(workdir, LABELS_FILE)
    if new and not os.path.exists(path):
        names = find_names(config)
        task = TextClassification(config, tokenizer, names, "")
        problems: list[str] = []
        for split in list_splits(config.data, open_pairs):
            with collect(problems):
                task.open_split(split)
        raise_all(problems)
        write_labels(path, names)
    return TextClassification(config, tokenizer, *read_labels(path, config.model.classes))


def find_names(config: Config) -> list[str]:
    """Returns the names of the classes of a new run, which are the labels of all its splits.

    Raises:
      UserError: if the model has a different number of classes, or a row has no label.
    """
    has_tags, classes = config.model.head == "tags", config.model.classes
    labels: dict[str, set[str]] = {}
    problems: list[str] = []
    for split in list_splits(config.data, open_pairs):
        with collect(problems):
            labels[split] = _find_labels(config, split, has_tags)
    raise_all(problems)
    names = sort_labels(set().union(*labels.values()))
    if len(names) != classes:
        raise UserError(_describe_difference(labels, names, classes))
    if missing := sort_labels(set(names) - labels["train"]):
        log.warning(
            "The training split has no example of the class %s, so the model cannot learn it.",
            ", ".join(missing[:MAX_SHOWN_LABELS]),
        )
    return names


def _find_labels(config: Config, split: str, has_tags: bool) -> set[str]:
    """Returns the labels of a split. Errors name the split."""
    try:
        return find_labels(open_pairs(config.data, split)[:], has_tags)
    except UserError as error:
        raise UserError(f"The split '{split}': {error}") from None


def _describe_difference(labels: Mapping[str, set[str]], names: Sequence[str], classes: int) -> str:
    """Returns the error message of a model that has a different number of classes than the labels."""
    trained = labels["train"]
    shown = ", ".join(sort_labels(trained)[:MAX_SHOWN_LABELS])
    others = {split: sort_labels(found - trained) for split, found in labels.items() if found - trained}
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
    if any(UNKNOWN in found for found in others.values()):
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
