"""Pretraining of BERT: predicts hidden tokens, and whether the second text of a row follows the first.

See `tfm.systems.bert.masked_pairs` for the batch, and `tfm.systems.bert.mask` for the vocabulary.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.schedule import Batches, PrefetchedData
from tfm.data.config import VOCABULARY_FILE, remove_paths
from tfm.data.sources.opening import open_documents
from tfm.data.sources.sentences import list_sentences, split_sentences
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.files import plan_size
from tfm.data.tokenizers.unknown_text import find_unknown_parts
from tfm.devices.mesh import fetch, place_rows
from tfm.errors import UserError
from tfm.evaluation.language_modeling_metrics import compute_perplexity
from tfm.evaluation.score import Score
from tfm.interpret.observation import EXAMPLES, Observation, check_length, cut_examples, observe_tokens
from tfm.losses import fused_linear_cross_entropy, smoothed_cross_entropy
from tfm.systems.bert.mask import MASK, add_mask
from tfm.systems.bert.masked_pairs import (
    MaskedPairs,
    SentencesConfig,
    choose_tokens,
    join_texts,
)
from tfm.systems.bert.model import BertConfig
from tfm.training.assets import prepare_tokenizer
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import add_sums, apply_model, mean_metrics, means
from tfm.training.task import Batch, Best, Context, Evaluation, LossOutput, Report, Task, Variables

EVALUATION_SEED = 0  # the validation and test splits hide the same tokens in every run


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a pretraining run. The defaults are BERT base on the bytes of text files."""

    task: str = tasks.task_field("masked_language_modeling")
    model: Any = models.model_field(BertConfig)
    data: SentencesConfig = field(SentencesConfig, "Documents and their rows.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    predicted_share: float = field(0.15, "Share of the tokens that are predicted.", minimum=0.01, maximum=1)
    loss_chunk_size: int = field(
        4096,
        "Number of predictions whose logits are in memory at the same time. Smaller chunks save memory.",
        minimum=1,
        maximum=10**9,
        unit="predictions",
        resume=OnResume.FREE,
    )
    SCORES: ClassVar[tuple[str, ...]] = ("masked accuracy", "masked perplexity", "next sentence accuracy")
    output_suffix: ClassVar[str] = "filled"  # of the file names SPLIT.filled.hypotheses: predicted tokens

    def __post_init__(self):
        check_fields(self)
        if getattr(self.model, "head", "") != "pretraining":
            raise UserError(
                f"The model '{self.model.name}' does not predict hidden tokens. Set model.name=bert and "
                "model.head=pretraining."
            )
        models.check_positions(self.model, "data.row_length", self.data.row_length)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))


class MaskedData(PrefetchedData):
    """The training and validation documents of a run. Implements `tfm.training.task.Data`."""

    def __init__(self, task: "MaskedLanguageModeling"):
        pairs, fingerprint = task.open_split("train", task.config.training.seed)
        self.validation, of_validation = task.open_split("validation", EVALUATION_SEED)
        batches = Batches([pairs], host_index=jax.process_index(), host_count=jax.process_count())
        fingerprints = {"tokenizer": task.tokenizer.fingerprint, "train": fingerprint}
        super().__init__(batches, fingerprints | {"validation": of_validation})

    def count(self, batch: Batch) -> int:
        """Returns the number of tokens of a host batch, without padding."""
        return int((batch["tokens"] > 0).sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the batches."""
        (rows, length), padding = self.batches.shapes[0], self.batches.padding_fraction
        return [
            ("pairs", f"{self.batches.pieces:,} to train on, {self.validation.pieces:,} to validate"),
            ("batches", f"1 shape, {rows} x {length}; padding {100 * padding:.1f} %"),
        ]


class MaskedLanguageModeling(Task):
    """A task that pretrains a bidirectional encoder.

    Attributes:
      config: `Config`.
      tokenizer: a `tfm.systems.bert.mask.MaskTokenizer`.
      model: the Linen module with the method `pretraining_outputs` of `tfm.systems.bert.model.Bert`.
      d_model, best, unit: see `tfm.training.task.Task`.
    """

    best = Best("validation/masked_nll", "min")
    validation_scores = (
        *("validation/masked_nll", "validation/masked_accuracy"),
        *("validation/next_nll", "validation/next_accuracy"),
    )
    validation_loss = "validation/masked_nll"
    unit = "tokens"
    example_help = "Your own text. [MASK] hides a token, which the model predicts."
    example_has_lines = True

    def __init__(self, config: Config, tokenizer: Any):
        self.config, self.tokenizer = config, add_mask(tokenizer)
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=len(self.tokenizer))
        self.d_model = getattr(config.model, "d_model", None)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.ones((1, 1), jnp.int32), train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy of hidden tokens ("masked") and of `follows` ("next"), two terms.

        The metrics are "masked_nll", "masked_accuracy", "next_nll" and "next_accuracy".
        """
        ((x, table), logits), state = self._outputs(variables, batch, context)
        chunk, rows = self.config.loss_chunk_size, batch["rows"].astype(jnp.float32)
        masked = fused_linear_cross_entropy(x, table, batch["targets"], batch["weights"], 0.0, chunk)
        follows = smoothed_cross_entropy(logits, batch["follows"], rows, smoothing=0.0)
        right = ((logits.argmax(-1) == batch["follows"]) * rows).sum(), follows[1]
        metrics = {"masked_nll": masked["nll"], "masked_accuracy": masked["accuracy"]}
        metrics |= {"next_nll": follows, "next_accuracy": right}
        return LossOutput({"masked": masked["loss"], "next": follows}, metrics, state)

    def _outputs(self, variables: Variables, batch: Batch, context: Context) -> Any:
        """Returns (output of `pretraining_outputs`, new state) of the model."""
        return apply_model(
            self.model,
            variables,
            batch["tokens"],
            batch["predicted"],
            types=batch["types"],
            context=context,
            method="pretraining_outputs",
        )

    def open_split(self, split: str, seed: int) -> tuple[MaskedPairs, str]:
        """Returns the pairs of a split and the fingerprint of its documents.

        Raises:
          UserError: if the documents cannot be used, or fewer than two of them have two sentences.
        """
        documents, data = open_documents(self.config.data, split), self.config.data
        cache = TokenCache.open(list_sentences(documents, data.sentences), self.tokenizer, data.cache)
        try:
            pairs = MaskedPairs(cache, data, self.tokenizer, self.config.predicted_share, seed)
        except UserError as error:
            raise UserError(f"The split '{split}': {error}") from None
        return pairs, documents.fingerprint

    def open_data(self) -> MaskedData:
        """Opens and tokenizes the training and validation data."""
        return MaskedData(self)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer in the work directory, or {} if tokens are bytes."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint} if self.config.data.tokenizer != "bytes" else {}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes the losses and accuracies of the validation split."""
        scores = mean_metrics(self, variables, data.validation.in_order())
        return Evaluation({f"validation/{name}": value for name, value in scores.items()})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the predicted tokens of each row, separated by blanks.

        The scores are the accuracy and the perplexity of the hidden tokens, and the accuracy of the next
        sentence. The same tokens are hidden in every run.

        Raises:
          UserError: see `open_split`.
        """
        pairs, fingerprint = self.open_split(split, EVALUATION_SEED)
        began = time.monotonic()
        sums: dict[str, tuple[float, float]] = {}
        examples: list[dict[str, str]] = []
        for batch in pairs.in_order():
            predictions, metrics = fetch(self._predict(variables, place_rows(batch, like=variables)))
            add_sums(sums, metrics)
            for row in np.flatnonzero(batch["rows"]):
                count = batch["weights"][row].sum()
                hidden = self._show(batch["targets"][row, :count])
                examples.append({"hidden": hidden, "filled": self._show(predictions[row, :count])})
        rate = len(examples) / (time.monotonic() - began)
        mean, what = means(sums), f"{pairs.pieces:,} rows, {100 * self.config.predicted_share:g} % predicted"
        scores = [
            Score("masked accuracy", 100 * mean["masked_accuracy"], f"per cent, {what}"),
            Score("masked perplexity", compute_perplexity(mean["masked_nll"]), what),
            Score("next sentence accuracy", 100 * mean["next_accuracy"], f"per cent, {what}"),
        ]
        outputs = [example["filled"] for example in examples]
        yield Report(outputs, scores, examples, {}, rate, fingerprint)

    def _show(self, ids: np.ndarray) -> str:
        """Returns separate tokens as one line."""
        return " ".join(" ".join(self.tokenizer.decode([i]).split()) for i in ids.tolist())

    @functools.partial(jax.jit, static_argnums=0)
    def _predict(self, variables: Any, batch: Batch) -> Any:
        """Returns the most probable tokens [B, K] and the metrics."""
        ((x, table), _), _ = self._outputs(variables, batch, Context())
        return (x @ table.T.astype(x.dtype)).argmax(-1), self.loss(variables, batch, Context()).metrics

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        return cut_examples(self.tokenizer, EXAMPLES, self.config.data.row_length - 2)

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records what the model computes for a text.

        Args:
          variables: variables of the model.
          example: the text, in which "[MASK]" hides a token. Without "[MASK]", the model reads the text with
            the share of hidden tokens of pretraining, and predicts these tokens.
          max_tokens: maximum number of tokens, including BOS and EOS.

        Raises:
          UserError: if the text is blank or too long, or its attention does not fit into the memory.
        """
        if not example.strip():
            raise UserError("Expected a text to read and draw, got an empty one.")
        sentences = split_sentences(example, self.config.data.sentences)
        read, _ = join_texts([i for text in sentences for i in self.tokenizer.encode_masked(text)])
        check_length(len(read), min(max_tokens, self.model.config.max_length or max_tokens))
        targets = read.tolist()
        if MASK not in example:
            rng = np.random.default_rng(EVALUATION_SEED)
            read[choose_tokens(rng, read, self.config.predicted_share)] = self.tokenizer.mask_id
        tokens = {"read": ("piece read", read.tolist()), "predicted": ("piece predicted", targets)}
        return observe_tokens(self.model, variables["params"], self.tokenizer, example, tokens)

    def find_unknown(self, example: str) -> list[str]:
        """See `tfm.interpret.observation.FindsUnknown`. A hidden token is no text."""
        return find_unknown_parts(self.tokenizer, example.replace(MASK, " "))


def plan(config: Config) -> MaskedLanguageModeling:
    """Returns the task of a run that has no tokenizer yet.

    Raises:
      UserError: if the user's tokenizer cannot be used.
    """
    return MaskedLanguageModeling(config, range(plan_size(config.data)))


def create(config: Config, workdir: str, *, new: bool = True) -> MaskedLanguageModeling:
    """Creates the task of a run. See `tfm.training.assets.prepare_tokenizer`."""
    return MaskedLanguageModeling(config, prepare_tokenizer(config, workdir, plan, new=new))


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split."""
    return open_documents(config.data, split).fingerprint
