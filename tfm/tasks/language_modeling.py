"""Language modelling: trains a decoder-only model on documents with cross-entropy.

A batch (see `tfm.data.batches.documents`) is a dict of int32 arrays [B, L]: inputs, targets, positions,
segments, weights. The weight of a padding token is 0.
"""

import dataclasses
import functools
import itertools
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models, tasks
from tfm.config import OnResume, check_fields, field
from tfm.data.batches.documents import score_windows, train_batches, window_batches
from tfm.data.batches.schedule import PrefetchedData
from tfm.data.config import VOCABULARY_FILE, DocumentsConfig, remove_paths
from tfm.data.source import Source
from tfm.data.sources.opening import fingerprint_texts, open_documents
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.files import plan_size
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, Tokenizer
from tfm.data.tokenizers.round_trip import count_changed
from tfm.decoding.config import GenerationConfig
from tfm.decoding.generate import Continuation, generate_texts
from tfm.decoding.protocol import as_ensemble, check_continues
from tfm.devices.mesh import fetch, place_rows
from tfm.errors import UserError
from tfm.evaluation.language_modeling_metrics import likelihood_scores
from tfm.evaluation.score import Score
from tfm.interpret.observation import EXAMPLES, Observation, check_length, cut_examples, observe_tokens
from tfm.layers.transformer_base import segments_or_tokens
from tfm.losses import chunked_log_probabilities, fused_linear_cross_entropy
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.training.assets import prepare_tokenizer
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model
from tfm.training.task import (
    Batch,
    Best,
    Context,
    Evaluation,
    LossOutput,
    Report,
    Samples,
    Task,
    Variables,
    parameters_of,
)

MAX_PADDING = 0.25  # share of the places of the batches, above which the description gives advice
MAX_EXAMPLE_CHARACTERS = 60  # of a document in an example of a report
DEFAULT_EXAMPLES = 2  # number of documents to observe
DEFAULT_TOKENS = 32  # of such a document
PROMPT_WORDS = 6  # words of a document that a sample continues
MAX_PROMPT_CHARACTERS = 100  # of these words, because some languages have no blanks between words
MAX_SAMPLE_TOKENS = 64  # of such a continuation
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a language-modelling run. The defaults are GPT-2 small on the bytes of text files."""

    task: str = tasks.task_field("language_modeling")
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

    SCORES: ClassVar[tuple[str, ...]] = (
        "bits per byte",
        "bits per character",
        "perplexity",
        "perplexity per word",
    )
    output_suffix: ClassVar[str] = "bits"  # of the file names SPLIT.bits.hypotheses: bits per byte

    def __post_init__(self):
        check_fields(self)
        models.check_positions(self.model, "data.row_length", self.data.row_length)
        if self.stride > self.data.row_length:
            raise UserError(
                f"Expected stride to be at most data.row_length ({self.data.row_length:,}), because a larger "
                f"stride leaves tokens out, got {self.stride:,}."
            )

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        """The settings on which the scores of an evaluation depend."""
        return {"window": self.data.row_length, "stride": self.stride, "rows": self.data.rows}

    def cut_documents(self, documents: Source, tokenizer: Tokenizer, split: str) -> Source:
        """Returns the documents of a split in the form that becomes tokens.

        Args:
          documents: the documents as they are stored.
          tokenizer: tokenizer of the run, with which a task can cut documents.
          split: name of the split.
        """
        del tokenizer, split
        return documents

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))


class TokenizedDocuments:
    """The first documents of a split, with their tokens.

    Args:
      config: config of the task.
      tokenizer: tokenizer of the run.
      split: name of the split.
      most: maximum number of documents; 0 reads all.

    Attributes:
      texts: the documents.
      tokens: int [N], the tokens of all documents. Each document ends in EOS.
      ends: int [documents], the index in `tokens` after the last token of each document.
      fingerprint: hash of the content of the whole split, before documents are cut.
      changed: number of documents that differ from the text of their tokens, because the tokenizer has no
        piece for a character or normalises texts.

    Raises:
      UserError: if the documents are missing, unusable or have no text.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, split: str, most: int = 0):
        stored = open_documents(config.data, split)
        self.fingerprint = stored.fingerprint
        documents = config.cut_documents(stored, tokenizer, split)
        self.texts = [text for (text,) in documents[: most or len(documents)]]
        if not any(self.texts):
            scope = f"the first {most:,} documents" if most else "the documents"
            advice = "Raise validation_documents, or set it to 0 to read all." if most else "Check the data."
            raise UserError(f"Expected a text in {scope} of the split '{split}', but all are empty. {advice}")
        tokens, ends = TokenCache.open(documents, tokenizer, config.data.cache).stream()
        self.ends = np.asarray(ends[: len(self.texts)])
        self.tokens = np.asarray(tokens[: self.ends[-1]])
        encoded = (ids.tolist() for ids in np.split(self.tokens, self.ends[:-1]))
        self.changed = count_changed(tokenizer, self.texts, encoded)
        if self.changed:
            log.warning(
                "The tokenizer changes %s of %s documents of the split '%s'. Their bits per byte cannot be "
                "compared with other tokenizers, because the model does not predict the whole text",
                f"{self.changed:,}",
                f"{len(self.texts):,}",
                split,
            )


class LanguageModelingData(PrefetchedData):
    """The training and validation documents of a run. Implements `tfm.training.task.Data`.

    Attributes:
      validation: the `TokenizedDocuments` that each evaluation scores.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer):
        stored = open_documents(config.data, "train")
        documents = config.cut_documents(stored, tokenizer, "train")
        cache = TokenCache.open(documents, tokenizer, config.data.cache)
        batches = train_batches(
            cache,
            config.data,
            config.training.seed,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        self.validation = TokenizedDocuments(config, tokenizer, "validation", config.validation_documents)
        self._config = config
        self._tokens = len(cache.stream()[0])
        fingerprints = {
            "tokenizer": tokenizer.fingerprint,
            "train": stored.fingerprint,
            "validation": self.validation.fingerprint,
        }
        super().__init__(batches, fingerprints)
        log.info(
            "%s training documents, %s tokens, vocabulary %s, %s batches of %s rows an epoch",
            f"{len(documents):,}",
            f"{self._tokens:,}",
            f"{len(tokenizer):,}",
            f"{batches.batches:,}",
            f"{batches.shapes[0][0]:,}",
        )

    def count(self, batch: Batch) -> int:
        """Returns the number of tokens of a host batch, without padding."""
        return int(batch["weights"].sum())

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) lines about the batches, with advice if over a quarter of them is padding."""
        (rows, length), padding = self.batches.shapes[0], self.batches.padding_fraction
        tokens = rows * length * jax.process_count() * (1 - padding)
        operations = f"about {6e-9 * parameters * tokens:,.0f} GFLOP a step (6 x parameters x tokens)"
        lines = [
            ("batches", f"1 shape, {rows} x {length}; padding {100 * padding:.1f} %"),
            ("epoch", f"{self.batches.batches:,} batches, {self._tokens:,} tokens"),
            ("arithmetic", operations),
        ]
        if padding > MAX_PADDING:
            lines.append(("warning", advise_padding(self._config.data, padding)))
        return lines


def advise_padding(data: DocumentsConfig, padding: float) -> str:
    """Returns the advice for a share of padding in the batches: the value of a field that leaves less."""
    rows = data.batch_tokens // data.row_length
    filled_rows = math.ceil(round(rows * (1 - padding), 6))
    if filled_rows < rows:
        advice = f"data.batch_tokens from {data.batch_tokens:,} to {filled_rows * data.row_length:,}"
    else:
        filled_places = math.ceil(round(data.row_length * (1 - padding), 6))
        fields = "data.row_length" if rows > 1 else "data.row_length and data.batch_tokens"
        advice = f"{fields} from {data.row_length:,} to {max(filled_places, 2):,}"
    return f"{100 * padding:.0f} % of each batch is padding. Decrease {advice}."


class LanguageModeling(Task):
    """A task that trains a language model.

    Attributes:
      config: `Config`.
      tokenizer: a `tfm.data.tokenizers.protocol.Tokenizer`.
      model: the Linen module, a `tfm.decoding.protocol.LanguageModel`.
      d_model: model width D for the paper's learning rate, or None if the model's config has no d_model.
      best, unit, validation_scores, validation_loss, averages_models: see `tfm.training.task.Task`.
    """

    best = Best("validation/bits_per_byte", "min")
    validation_scores = (
        "validation/bits_per_byte",
        "validation/bits_per_character",
        "validation/perplexity",
        "validation/perplexity_per_word",
    )
    validation_loss = "validation/bits_per_byte"
    unit = "tokens"
    example_help = "Your own text for the model to read. Enter reads it, Shift+Enter begins a new line."
    example_has_lines = True
    averages_models = True

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
        targets, chunk = batch["targets"], self.config.loss_chunk_size
        passes = [self._features({"params": params}, batch, Context())[0] for params in members]
        each = [chunked_log_probabilities(features, table, targets, chunk) for features, table in passes]
        return jax.nn.logmeanexp(jnp.stack(each), axis=0)

    def _features(self, variables: Variables, batch: Batch, context: Context) -> Any:
        """Returns ((features [B, L, D], embedding table of the logits), new state) of the model."""
        return apply_model(
            self.model,
            variables,
            batch["inputs"],
            positions=batch["positions"],
            segments=segments_or_tokens(self.model, batch["segments"], self.config.data.rows == "packed"),
            context=context,
            method="features",
        )

    def open_data(self) -> LanguageModelingData:
        """Opens and tokenizes the training and validation data, and cuts them into rows."""
        return LanguageModelingData(self.config, self.tokenizer)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the tokenizer in the work directory, or {} if tokens are bytes."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint} if self.config.data.tokenizer != "bytes" else {}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes bits per byte and per character and the perplexity of the validation split.

        The samples are greedy continuations of the first words of some documents.
        """
        params = variables["params"]
        scores = self._score(self.document_nats(params, data.validation), data.validation)
        metrics = {f"validation/{score.name.replace(' ', '_')}": score.value for score in scores}
        return Evaluation(metrics, self.make_samples(params, data.validation.texts))

    def make_samples(self, params: Any, texts: Iterable[str]) -> Samples:
        """Continues the beginnings of `validation_samples` documents greedily. Skips blank documents.

        The model continues all prompts in one batch, so every evaluation runs the same compiled program.

        Returns:
          `Samples` with the prompt, the rest of the document and the continuation of each document.
        """
        lines = (" ".join(text.split()) for text in texts if text.strip())
        documents = list(itertools.islice(lines, self.config.validation_samples))
        if not documents:
            return Samples([], {})
        prompts = [" ".join(text.split(" ")[:PROMPT_WORDS])[:MAX_PROMPT_CHARACTERS] for text in documents]
        decoding = self.config.decoding
        greedy = dataclasses.replace(
            decoding,
            samples=0,
            beam_size=1,
            max_tokens=min(decoding.max_tokens, MAX_SAMPLE_TOKENS),
            batch_size=len(prompts),
        )
        continuations = self.generate(params, prompts, greedy)
        rows = [
            {"prompt": prompt, "reference": text[len(prompt) :].lstrip(), "continuation": best.text}
            for prompt, text, (best, *_) in zip(prompts, documents, continuations, strict=True)
        ]
        return Samples(rows, {})

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one report, whose outputs are the bits per byte of each document, with four decimals.

        For the scores, see `tfm.evaluation.language_modeling_metrics.likelihood_scores`.

        Raises:
          UserError: if the documents are missing, unusable or have no text.
        """
        documents = TokenizedDocuments(self.config, self.tokenizer, split)
        began = time.monotonic()
        nats = self.document_nats(parameters_of(variables), documents)
        rate = len(documents.texts) / (time.monotonic() - began)
        sizes = [max(len(text.encode("utf-8")), 1) for text in documents.texts]
        outputs = [f"{value / np.log(2) / size:.4f}" for value, size in zip(nats, sizes, strict=True)]
        examples = [
            {"document": " ".join(text[:MAX_EXAMPLE_CHARACTERS].split()), "bits/byte": output}
            for text, output in zip(documents.texts, outputs, strict=True)
        ]
        settings, identity = self.config.evaluation_settings, fingerprint_texts(documents.texts, [])
        yield Report(outputs, self._score(nats, documents), examples, settings, rate, identity)

    def document_nats(self, params: Any, documents: TokenizedDocuments) -> np.ndarray:
        """Returns the negative log-probability of each document with its EOS, in nats: float64 [documents].

        Each token is scored once. The context is the same as in training: with contiguous rows the previous
        documents and the document, with packed rows only the document.
        """
        data = self.config.data
        ends = documents.ends if data.rows == "packed" else documents.ends[-1:]
        windows = score_windows(ends, data.row_length, self.config.stride)
        scores = np.full(len(documents.tokens), np.nan)
        members = as_ensemble(params)
        for batch_windows, batch in window_batches(documents.tokens, windows, data.batch_tokens):
            log_probabilities = fetch(self.log_probabilities(members, place_rows(batch, like=members)))
            for row, (start, length, counted) in enumerate(zip(*batch_windows, strict=True)):
                first = length - counted
                scores[start + first : start + length] = log_probabilities[row, first:length]
        return -np.add.reduceat(scores, np.concatenate([[0], documents.ends[:-1]]))

    def _score(self, nats: np.ndarray, documents: TokenizedDocuments) -> list[Score]:
        """Returns the `likelihood_scores` of documents. `nats` is the result of `document_nats`."""
        how = ", ".join(f"{name} {value}" for name, value in self.config.evaluation_settings.items())
        if documents.changed:
            how += f", {documents.changed:,} changed by the tokenizer: compare only with the same tokenizer"
        return likelihood_scores(nats, len(documents.tokens), documents.texts, how)

    def default_examples(self) -> list[str]:
        """Returns the beginnings of some validation documents.

        If they cannot be read, as in an export on another machine, returns sentences of the paper's authors.
        """
        try:
            documents = open_documents(self.config.data, "validation")
            texts = [text for (text,) in documents[: 2 * DEFAULT_EXAMPLES]]
        except UserError:
            texts = list(EXAMPLES)
        limit = min(DEFAULT_TOKENS, self.model.config.max_length or DEFAULT_TOKENS) - 1  # the end is a token
        return cut_examples(self.tokenizer, texts, limit)[:DEFAULT_EXAMPLES]

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """Records what the model computes for each token of a text and for its end.

        Args:
          variables: variables of the model.
          example: the text.
          max_tokens: maximum number of tokens, including the end.

        Raises:
          UserError: if the text is blank or too long, or its attention does not fit into the memory.
        """
        if not example.strip():
            raise UserError("Expected a text to read and draw, got an empty one.")
        predicted = [*self.tokenizer.encode([example])[0], EOS_ID]
        check_length(len(predicted), min(max_tokens, self.model.config.max_length or max_tokens))
        tokens = {
            "read": ("piece read", [BOS_ID, *predicted[:-1]]),
            "predicted": ("piece predicted", predicted),
        }
        return observe_tokens(self.model, variables["params"], self.tokenizer, example, tokens)

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
    """Creates the task of a run. See `tfm.training.assets.prepare_tokenizer`."""
    return LanguageModeling(config, prepare_tokenizer(config, workdir, plan, new=new))


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split."""
    return open_documents(config.data, split).fingerprint
