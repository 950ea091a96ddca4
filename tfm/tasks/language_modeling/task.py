"""Language modelling: trains a decoder-only model on documents with cross-entropy.

A batch (see `tfm.data.batches.documents`) is a dict of int32 arrays [B, L]: inputs, targets, positions,
segments, weights. The weight of a padding token is 0.
"""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from tfm import models
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.documents import plan_largest_batch
from tfm.data.config import SPLITS, TOKENIZER_FILE, DocumentsConfig, remove_paths
from tfm.data.sources.documents import check_documents, open_documents
from tfm.data.token_cache import check_folder
from tfm.data.tokenizers.characters import learn_characters
from tfm.data.tokenizers.files import copy_tokenizer, is_own_file, load_tokenizer, plan_size
from tfm.data.tokenizers.learning import RepeatableTexts, learn_word_pieces
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import Continuation, generate_texts
from tfm.decoding.protocol import check_continues
from tfm.errors import UserError
from tfm.losses import chunked_log_probabilities, fused_linear_cross_entropy
from tfm.memory import check_batches_fit
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.tasks.language_modeling.data import LanguageModelingData
from tfm.tasks.language_modeling.observe import default_texts, observe_text
from tfm.tasks.language_modeling.report import document_nats, report_split, score_documents
from tfm.tasks.language_modeling.samples import make_samples
from tfm.training.config import TrainingConfig
from tfm.training.model_calls import apply_model
from tfm.training.setup import check_plan
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Task,
    Variables,
    parameters_of,
)
from tfm.visualize.observation import Observation

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a language-modelling run. The defaults are GPT-2 small on the bytes of text files."""

    task: str = field("language_modeling", "A module of tfm.tasks.", resume=OnResume.FIXED, warm_start=False)
    model: Any = models.model_field(DecoderLMConfig)
    data: DocumentsConfig = field(DocumentsConfig, "Documents and their rows.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    decoding: GenerationConfig = field(GenerationConfig, "Search or sampling of `tfm generate`.")
    loss_chunk_size: int = field(
        4096,
        "Number of positions whose logits are in memory at the same time. Smaller chunks save memory.",
        minimum=1,
        maximum=10**9,
        unit="positions",
        resume=OnResume.FREE,
    )
    stride: int = field(
        512,
        "Tokens between the starts of two windows of an evaluation. Windows have data.row_length tokens. A "
        "smaller stride gives tokens more context and takes longer. At most data.row_length.",
        minimum=1,
        maximum=10**6,
        unit="tokens",
        resume=OnResume.FREE,
    )
    validation_documents: int = field(
        0,
        "Number of validation documents to score during training. 0 scores all.",
        minimum=0,
        maximum=10**9,
        unit="documents",
        resume=OnResume.FREE,
    )

    validation_samples: int = field(
        0,
        "Number of validation documents to continue greedily from their first words at each evaluation, "
        "written into samples.jsonl. Compiles the search once. 0 turns this off.",
        minimum=0,
        maximum=1000,
        unit="documents",
        resume=OnResume.FREE,
    )

    SCORES: ClassVar[tuple[str, ...]] = ("bits per byte", "bits per character", "perplexity")

    def __post_init__(self):
        check_fields(self)
        most = getattr(self.model, "max_length", None)
        if most is not None and self.data.row_length > most:
            raise UserError(
                f"Expected data.row_length ({self.data.row_length:,}) to be at most model.max_positions "
                f"({most:,}). Decrease the former or increase the latter."
            )
        if self.stride > self.data.row_length:
            raise UserError(
                f"Expected stride to be at most data.row_length ({self.data.row_length:,}), because a larger "
                f"stride leaves tokens out, got {self.stride:,}."
            )

    @property
    def output_suffix(self) -> str:
        """Returns the middle of the file names SPLIT.bits.hypotheses, the bits per byte of each document."""
        return "bits"

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))


class LanguageModeling(Task):
    """A task that trains a language model.

    Attributes:
      config: `Config`.
      tokenizer: a `tfm.data.tokenizers.protocol.Tokenizer`.
      model: the Linen module, a `tfm.decoding.protocol.LanguageModel`.
      d_model: model width D for the paper's learning rate, or None if the model's config has no d_model.
      best, unit: see `tfm.training.task.Task`.
    """

    best = Best("validation/bits_per_byte", "min")
    unit = "tokens"

    def __init__(self, config: Config, tokenizer: Tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=len(tokenizer))
        check_continues(self.model)
        self.d_model = getattr(config.model, "d_model", None)

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        return self.model.init(rng, jnp.ones((1, 1), jnp.int32), train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the cross-entropy of each token.

        The metrics are "bits_per_token" and "accuracy". See the module's docstring for the batch.
        """
        (features, table), state = self._features(variables, batch, context)
        weights = batch["weights"].astype(jnp.float32)
        chunk = self.config.loss_chunk_size
        metrics = fused_linear_cross_entropy(features, table, batch["targets"], weights, 0.0, chunk)
        total, count = metrics.pop("nll")
        metrics["bits_per_token"] = total / math.log(2), count
        return LossOutput({"loss": metrics.pop("loss")}, metrics, state)

    @functools.partial(jax.jit, static_argnums=0)
    def log_probabilities(self, members: tuple[Any, ...], batch: Any) -> jax.Array:
        """Returns the log-probability of each target, float32 [B, L].

        The probabilities of several members, the parameters of an ensemble, are averaged.
        """
        of_members = []
        for params in members:
            (features, table), _ = self._features({"params": params}, batch, Context())
            chunk = self.config.loss_chunk_size
            of_members.append(chunked_log_probabilities(features, table, batch["targets"], chunk))
        return jax.nn.logsumexp(jnp.stack(of_members), axis=0) - math.log(len(of_members))

    def _features(self, variables: Variables, batch: Batch, context: Context) -> Any:
        """Returns ((features [B, L, D], embedding table of the logits), new state) of the model."""
        return apply_model(
            self.model,
            variables,
            batch["inputs"],
            positions=batch["positions"],
            segments=batch["segments"],
            context=context,
            method="features",
        )

    def example(self) -> Batch | None:
        """Returns the largest batch. Its shape depends only on the config."""
        return plan_largest_batch(self.config.data, jax.process_count())

    def open_data(self) -> LanguageModelingData:
        """Opens and tokenizes the training and validation data, and cuts them into rows."""
        return LanguageModelingData(self.config, self.tokenizer)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer in the work directory, or {} if tokens are bytes."""
        return {TOKENIZER_FILE: self.tokenizer.fingerprint} if self.config.data.tokenizer != "bytes" else {}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes bits per byte and per character and the perplexity of the validation split.

        The samples are greedy continuations of the first words of some documents.
        """
        params = variables["params"]
        nats = document_nats(self, params, data.validation)
        scores = {
            f"validation/{score.name.replace(' ', '_')}": score.value
            for score in score_documents(self, nats, data.validation)
        }
        return Evaluation(scores, make_samples(self, params, data.validation.texts))

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields the scores of a split and the bits per byte of each document."""
        return report_split(self, parameters_of(variables), split)

    def default_examples(self) -> list[str]:
        """See `tfm.visualize.observation.Observes`."""
        return default_texts(self)

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """See `tfm.tasks.language_modeling.observe.observe_text`."""
        return observe_text(self, variables["params"], example, max_tokens)

    def generate(
        self, params: Any, prefixes: list[str], decoding: GenerationConfig | None = None, **options: Any
    ) -> list[list[Continuation]]:
        """See `tfm.decoding.generate.generate_texts`. `decoding` defaults to the config's."""
        decoding = decoding or self.config.decoding
        return generate_texts(self.model, params, self.tokenizer, prefixes, decoding, **options)


def plan(config: Config) -> LanguageModeling:
    """Returns the task of a run that has no tokenizer yet. See `plan_size` for its vocabulary.

    Raises:
      UserError: if the model is not a language model, or the user's tokenizer cannot be used.
    """
    only_length = range(plan_size(config.data))  # the parameters depend on nothing else
    return LanguageModeling(config, cast(Tokenizer, only_length))


def create(config: Config, workdir: str, *, new: bool = True) -> LanguageModeling:
    """Creates the task of a run with the tokenizer in `workdir`.

    Args:
      config: config of the run.
      workdir: work directory of the run.
      new: checks the memory and the data. If `workdir` has no tokenizer yet and the config needs one, copies
        the user's file, or learns a tokenizer from the training documents.

    Raises:
      UserError: if the model is not a language model, the data or the tokenizer cannot be used (with all
        problems in the message), or the model of a new run does not fit into the memory.
    """
    path, data = os.path.join(workdir, TOKENIZER_FILE), config.data
    begins = new and not os.path.exists(path)
    if begins:
        check_plan(plan(config), config.training)
    if new:
        check_batches_fit(data.batch_tokens)
        check_documents(data, SPLITS if begins else SPLITS[:2])
        check_folder(data.cache)
    if begins and data.tokenizer != "bytes":
        make_tokenizer(data, path)
    return LanguageModeling(config, load_tokenizer(path, data.tokenizer))


def make_tokenizer(data: DocumentsConfig, path: str) -> None:
    """Copies the user's tokenizer to `path`, or learns a tokenizer from the training documents."""
    if is_own_file(data.tokenizer):
        copy_tokenizer(data.tokenizer, path)
        return
    documents = open_documents(data, "train")
    log.info("Making a tokenizer of %s from %s documents", data.tokenizer, f"{len(documents):,}")
    if data.tokenizer == "characters":
        learn_characters((text for (text,) in documents), path)
        return
    paragraphs = RepeatableTexts(lambda: (part for (text,) in documents for part in text.split("\n\n")))
    learn_word_pieces(paragraphs, data.vocabulary_size, path, lossless=True)


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split."""
    return open_documents(config.data, split).fingerprint
