"""Translation: trains a sequence-to-sequence model on pairs of sentences with smoothed cross-entropy.

A batch (see `tfm.data.batches.pairs`) is a dict of int32 arrays: inputs, input_positions, input_segments
[B, M] and targets, target_positions, target_segments [B, L]. The targets of each sentence end in EOS.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from tfm import models, tasks
from tfm.array_types import Array
from tfm.config import OnResume, check_fields, field
from tfm.data.config import SOURCE_VOCABULARY_FILE, VOCABULARY_FILE, PairsConfig, remove_paths, split_tags
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.files import plan_size
from tfm.data.tokenizers.protocol import PieceTokenizer, has_separate_source, source_tokenizer
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import check_translates, shift_right
from tfm.interpret.observation import EXAMPLES, Observation
from tfm.layers.transformer_base import segments_or_tokens
from tfm.losses import dropout_divergence, fused_linear_cross_entropy
from tfm.models import TransformerConfig
from tfm.tasks.translation.data import TranslationData
from tfm.tasks.translation.observe import make_samples, observe_sentence, observe_target
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.tasks.translation.text_form import TextForm
from tfm.training.assets import prepare_tokenizer
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import apply_model, mean_metrics
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

BLEU_TOKENIZERS = ("auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none")


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a translation run. The defaults are the paper's base model on WMT14 English-German."""

    task: str = tasks.task_field("translation")
    model: Any = models.model_field(TransformerConfig)
    data: PairsConfig = field(PairsConfig, "Pairs of sentences and their batches.")
    training: TrainingConfig = field(TrainingConfig, "Training procedure.")
    decoding: DecodingConfig = field(DecodingConfig, "Search of evaluation and translation.")
    label_smoothing: float = field(0.1, "Label smoothing, epsilon_ls (section 5.4).", minimum=0, less_than=1)
    r_drop: float = field(
        0.0,
        "Weight of R-Drop (Liang et al. 2021), alpha. Each training step passes its batch through the model "
        "twice with different dropout, and adds the weight times half of the divergence of the two "
        "predictions to the loss. 5 is usual for translation. A step takes about twice the time.",
        minimum=0,
        maximum=1000,
    )
    loss_chunk_size: int = field(
        1024,
        "Number of target positions whose logits are in memory at the same time. Smaller chunks save memory.",
        minimum=1,
        maximum=10**9,
        unit="positions",
        resume=OnResume.FREE,
    )
    validation_sentences: int = field(
        500,
        "Number of validation sentences to decode greedily for the score that selects the best checkpoint: "
        "BLEU, or the F1 of a parser with its error sentences. Several corpora have equal shares of them. "
        "The validation loss uses all pairs that fit into data.max_length.",
        minimum=0,
        maximum=10**9,
        unit="sentences",
        resume=OnResume.FREE,
    )

    validation_samples: int = field(
        4,
        "Number of validation sentences that each evaluation writes into samples.jsonl with translations, "
        "with a picture of the attention of the first. 0 turns this off.",
        minimum=0,
        maximum=1000,
        unit="sentences",
        resume=OnResume.FREE,
    )

    bleu_tokenizer: str = field(
        "auto",
        "sacreBLEU's tokenizer of BLEU. auto: zh for Chinese, char for Korean and for other languages "
        "without spaces, 13a for all others. The letters of the references decide if they contradict the "
        "code of the target language.",
        choices=BLEU_TOKENIZERS,
        resume=OnResume.FREE,
    )
    ter: bool = field(
        True,
        "Whether tfm evaluate computes TER. It takes minutes if texts have more than a thousand words.",
        resume=OnResume.FREE,
    )

    SCORED_BY_BLEU: ClassVar[bool] = True  # whether `tfm compare` can compare two runs
    # Shell patterns of the names of the scores, so that a sweep reports a misspelt name before it trains.
    SCORES: ClassVar[tuple[str, ...]] = (
        *("BLEU", "BLEU, *", "chrF2", "TER", "perplexity"),
        *("exact match", "pronoun accuracy", "alignment error rate"),  # of the built-in language
    )

    def __post_init__(self):
        check_fields(self)
        longest_input = self.decoding.max_input + self.decoding.max_extra_tokens
        models.check_positions(self.model, "data.max_length", self.data.max_side_length)
        models.check_positions(self.model, "decoding.max_input + max_extra_tokens", longest_input)

    @property
    def output_suffix(self) -> str:
        """Returns the target language, the middle of the file names SPLIT.LANGUAGE.hypotheses."""
        return self.data.target_language

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        """The settings on which the scores of an evaluation depend."""
        scoring = {"bleu_tokenizer": self.bleu_tokenizer, "ter": self.ter}
        return dataclasses.asdict(self.decoding) | scoring | {"normalization": self.data.normalization}

    def choose_bleu_tokenizer(self, references: Sequence[str]) -> str:
        """Returns the name of sacreBLEU's tokenizer for the target language and its texts."""
        from tfm.evaluation.translation_metrics import bleu_tokenizer  # takes a tenth of a second

        if self.bleu_tokenizer != "auto":
            return self.bleu_tokenizer
        return bleu_tokenizer(self.data.target_language, references)

    def without_paths(self) -> "Config":
        """Returns this config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))


class Translation(TextTranslation, Task):
    """A task that trains a sequence-to-sequence model.

    Attributes:
      config: `Config`.
      tokenizer: a `tfm.data.tokenizers.protocol.PieceTokenizer`.
      form: a `TextForm` with this tokenizer. Subclasses may set another `form_type`.
      model: the Linen module.
      d_model: model width D for the paper's learning rate, or None if the model's config has no d_model.
      best, unit, validation_loss, averages_models: see `tfm.training.task.Task`.
    """

    best = Best("validation/bleu", "max")
    validation_loss = "validation/nll"
    unit = "tokens"
    output_scores: tuple[str, ...] = ("bleu",)  # names of `score_hypotheses`
    averages_models = True
    form_type: type[TextForm] = TextForm
    example_help = "Your own text to translate. Enter translates it, Shift+Enter begins the next text."

    def __init__(self, config: Config, tokenizer: PieceTokenizer):
        self.config = config
        if not config.validation_sentences:
            self.best = Best("")  # no evaluation has the score
        self.tokenizer = tokenizer
        self.form = self.form_type(
            tokenizer,
            source_prefix=config.data.source_prefix,
            target_prefix=config.data.target_prefix,
            tags=split_tags(config.data.tags),
        )
        self.model = models.find(config.model.name).Model(config.model, vocabulary_size=len(tokenizer))
        check_translates(self.model)
        self.d_model = getattr(config.model, "d_model", None)

    @property
    def validation_scores(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the scores of `evaluate`. Without validation sentences, no output has a score."""
        outputs = self.output_scores if self.config.validation_sentences else ()
        return tuple(f"validation/{name}" for name in ("nll", "accuracy", *outputs))

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        token = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, token, token, train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the smoothed cross-entropy per target token.

        The metrics are "nll", the loss without smoothing, and "accuracy". With R-Drop, training has a second
        term, "divergence". See the module's docstring for the batch.
        """
        r_drop = self.config.r_drop if context.train else 0.0
        if r_drop:
            batch = jax.tree.map(lambda rows: jnp.repeat(rows, 2, axis=0), batch)
        targets = batch["targets"]
        weights = (batch["target_segments"] > 0).astype(jnp.float32)
        sides = batch["inputs"], shift_right(targets, batch["target_positions"])
        (features, table), state = self.compute_features(variables, *sides, batch, context)
        metrics = fused_linear_cross_entropy(
            features, table, targets, weights, self.config.label_smoothing, self.config.loss_chunk_size
        )
        terms = {"loss": metrics.pop("loss")}
        if r_drop:
            total, count = dropout_divergence(features, table, weights, self.config.loss_chunk_size)
            terms["divergence"] = (r_drop / 2 * total, count)
        return LossOutput(terms, metrics, state)

    def compute_features(
        self, variables: Variables, inputs: Array, decoder_inputs: Array, batch: Batch, context: Context
    ) -> Any:
        """Returns ((features [B, L, D], embedding table of the logits), new state) of the model.

        Args:
          variables: of the model.
          inputs, decoder_inputs: int [B, M] and [B, L], the tokens that the encoder and the decoder read.
          batch: has the positions and segments of both sides.
          context: of the loss.
        """
        packed = self.config.data.batching == "packed"
        keywords: dict[str, Any] = {name: batch[name] for name in ("input_positions", "target_positions")}
        for name in ("input_segments", "target_segments"):
            keywords[name] = segments_or_tokens(self.model, batch[name], packed)
        keywords |= {"context": context, "method": "features"}
        return apply_model(self.model, variables, inputs, decoder_inputs, **keywords)

    def open_data(self) -> TranslationData:
        """Opens and tokenizes the training and validation data, and plans their batches."""
        return TranslationData(self.config, self.tokenizer)

    def assets(self) -> dict[str, str]:
        """Returns {file name: SHA-256} of the vocabulary. The parameters are useless without it."""
        assets = {VOCABULARY_FILE: self.tokenizer.fingerprint}
        if has_separate_source(self.tokenizer):
            assets[SOURCE_VOCABULARY_FILE] = source_tokenizer(self.tokenizer).fingerprint
        return assets

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Computes loss and accuracy of the validation split, and scores and samples of some translations.

        The first `config.validation_sentences` sentences are translated greedily. With 0 of them, there are
        only loss and accuracy. `validation_scores` has the names of the metrics.
        """
        params = variables["params"]
        scores = mean_metrics(self, variables, data.validation_batches)
        hypotheses: list[str] = []
        if data.validation_pairs:
            sources, references = zip(*data.validation_pairs, strict=True)
            greedy = dataclasses.replace(self.config.decoding, beam_size=1, samples=0)
            hypotheses = self.translate(params, sources, greedy)
            scores |= self.score_hypotheses(hypotheses, sources, references)
        samples = make_samples(self, params, data.validation_pairs, hypotheses)
        return Evaluation({f"validation/{name}": value for name, value in scores.items()}, samples)

    def score_hypotheses(
        self, hypotheses: list[str], sources: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Returns {name: score} of the translations of the sources, for the evaluations during training."""
        from tfm.evaluation.translation_metrics import bleu  # takes a tenth of a second

        pairs = zip(map(self.form.read_source, sources), references, strict=True)
        written = [self.form.write_target(source, reference) for source, reference in pairs]
        return {"bleu": bleu(hypotheses, written, self.config.choose_bleu_tokenizer(written)).value}

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields a report with translations and scores. See `tfm.tasks.translation.report.report_split`."""
        from tfm.tasks.translation.report import report_split  # imports sacreBLEU, too

        return report_split(self, parameters_of(variables), split)

    def default_examples(self) -> list[str]:
        """See `tfm.interpret.observation.Observes`."""
        return list(EXAMPLES)

    def observe(self, variables: Variables, example: str, max_tokens: int) -> Observation:
        """See `tfm.tasks.translation.observe.observe_sentence`."""
        return observe_sentence(self, variables["params"], example, max_tokens)

    def observe_target(self, variables: Variables, example: str, target: Sequence[int]) -> Observation:
        """See `tfm.tasks.translation.observe.observe_target`."""
        return observe_target(self, variables["params"], example, target)


def plan(config: Config) -> Translation:
    """Returns the task of a run that has no vocabulary yet. See `plan_size` for the size of its vocabulary.

    Raises:
      UserError: if the model does not translate, or the user's tokenizer cannot be used.
    """
    only_length = range(plan_size(config.data))  # the parameters depend on nothing else
    return Translation(config, cast(PieceTokenizer, only_length))


def create(config: Config, workdir: str, *, new: bool = True) -> Translation:
    """Creates the task of a run. See `tfm.training.assets.prepare_tokenizer`."""
    return Translation(config, prepare_tokenizer(config, workdir, plan, new=new))


def fingerprint(config: Config, split: str) -> str:
    """Returns a hash of the content of a split."""
    return open_pairs(config.data, split).fingerprint
