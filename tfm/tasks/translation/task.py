"""Translation: pairs of sentences in, a sequence-to-sequence model trained with smoothed cross-entropy.

A batch (see `tfm.data.batches.pairs`) is a dict of int32 arrays: inputs, input_positions, input_segments
[B, M] and targets, target_positions, target_segments [B, L]; targets are gold tokens that end in EOS.
"""

import dataclasses
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tfm import models
from tfm.array_types import Array
from tfm.data.batches.pairs import plan_largest_batch
from tfm.data.config import SPLITS, VOCABULARY_FILE, DataConfig, remove_paths
from tfm.data.sources.opening import check_splits, find_problems, open_pairs, split_tags
from tfm.data.token_cache import check_folder
from tfm.data.tokenizer import BOS_ID, Tokenizer
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import check_translates
from tfm.errors import UserError
from tfm.evaluation.alignment import Links
from tfm.evaluation.translation_metrics import bleu
from tfm.fields import CHANGEABLE, NEVER, check_fields, field
from tfm.losses import fused_linear_cross_entropy
from tfm.memory import check_batches_fit, check_training_fits
from tfm.models import TransformerConfig
from tfm.tasks.translation.data import TranslationData
from tfm.tasks.translation.pipeline import Hypothesis, align_texts, score_texts, translate_texts
from tfm.tasks.translation.report import report_split
from tfm.tasks.translation.samples import make_samples
from tfm.training.config import TrainingConfig
from tfm.training.model_calls import apply_model
from tfm.training.reporting import add_sums, means
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

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    """A translation run; the defaults are the paper's base model on WMT14 English-German."""

    task: str = field("translation", "A module of tfm.tasks.", resume=NEVER, warm_start=False)
    model: Any = models.model_field(TransformerConfig)
    data: DataConfig = field(DataConfig, "Where the pairs come from and how they are batched.")
    training: TrainingConfig = field(TrainingConfig, "The procedure.")
    decoding: DecodingConfig = field(DecodingConfig, "The search of evaluation and translation.")
    label_smoothing: float = field(0.1, "Epsilon_ls of section 5.4.", least=0, below=1)
    loss_chunk_size: int = field(
        1024,
        "Target positions whose logits are held in memory at a time; fewer save memory.",
        least=1,
        most=10**9,
        unit="positions",
        resume=CHANGEABLE,
    )
    validation_sentences: int = field(
        500,
        "So many of the validation split are translated, greedily, for the BLEU during training, which picks "
        "the best checkpoint; its loss is over all that fit into data.max_length.",
        least=0,
        most=10**9,
        unit="sentences",
        resume=CHANGEABLE,
    )

    validation_samples: int = field(
        4,
        "So many of these, spread over them, are written beside each evaluation with what the model made of "
        "them, and the attention of the first is drawn; 0 writes none.",
        least=0,
        most=1000,
        unit="sentences",
        resume=CHANGEABLE,
    )

    RENAMED: ClassVar[dict[str, str]] = {"logits_at_once": "loss_chunk_size"}
    SCORED_BY_BLEU: ClassVar[bool] = True  # whether `tfm compare` tells which of two runs is better

    def __post_init__(self):
        check_fields(self)
        if self.training.patience and not self.validation_sentences:
            raise UserError(
                "training.patience waits for better translations: set validation_sentences above 0."
            )
        self._check_positions()

    @property
    def output_suffix(self) -> str:
        """Language of the translations: files of them are called SPLIT.LANGUAGE.hypotheses."""
        return self.data.target_language

    def without_paths(self) -> "Config":
        """This config without the paths of the machine that trained it, for an export."""
        return dataclasses.replace(self, data=remove_paths(self.data))

    def _check_positions(self):
        longest, decoding = self.model.max_length, self.decoding
        needed = {
            "data.max_length": self.data.max_side_length,
            "decoding.max_input + max_extra_tokens": decoding.max_input + decoding.max_extra_tokens,
        }
        for name, tokens in needed.items():
            if longest is not None and tokens > longest:
                raise UserError(
                    f"{name} asks for {tokens:,} positions and model.max_positions has {longest:,}: "
                    "lower the one or raise the other."
                )


class Translation(Task):
    """A task that trains a sequence-to-sequence model.

    Attributes:
      config: `Config`.
      tokenizer: `tfm.data.tokenizer.Tokenizer`.
      model: the Linen module.
      d_model: D of the model, for the paper's learning rate; None where its config has none.
      best, unit: see `tfm.training.task.Task`.
    """

    best = Best("validation/bleu", "max")
    unit = "tokens"

    def __init__(self, config: Config, tokenizer: Tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        found = models.find(config.model.name)
        self.model = found.Model(config.model, vocabulary_size=len(tokenizer))
        check_translates(self.model)
        self.d_model = getattr(config.model, "d_model", None)
        self._evaluation_loss = jax.jit(
            lambda variables, batch: self.loss(variables, batch, Context()).metrics
        )

    def init(self, rng: jax.Array) -> Variables:
        """Returns the variables before training."""
        token = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, token, token, train=False)

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the smoothed cross-entropy per target token.

        The metrics are "nll", the loss without smoothing, and "accuracy". See the module's docstring for the
        batch.
        """
        targets = batch["targets"]
        weights = (batch["target_segments"] > 0).astype(jnp.float32)
        (features, table), state = apply_model(
            self.model,
            variables,
            batch["inputs"],
            shift_right(targets, batch["target_positions"]),
            input_positions=batch["input_positions"],
            input_segments=batch["input_segments"],
            target_positions=batch["target_positions"],
            target_segments=batch["target_segments"],
            context=context,
            method="features",
        )
        metrics = fused_linear_cross_entropy(
            features, table, targets, weights, self.config.label_smoothing, self.config.loss_chunk_size
        )
        return LossOutput({"loss": metrics.pop("loss")}, metrics, state)

    def example(self) -> Batch | None:
        """Returns the largest batch of packed rows; the shapes of other batches depend on the data."""
        return plan_largest_batch(self.config.data, jax.process_count())

    def open_data(self) -> TranslationData:
        """Opens, tokenises and plans training and validation data."""
        return TranslationData(self.config, self.tokenizer)

    def assets(self) -> dict[str, str]:
        """{file name: SHA-256} of the files in the work directory that the weights mean nothing without."""
        return {VOCABULARY_FILE: self.tokenizer.fingerprint}

    def evaluate(self, variables: Variables, data: Any) -> Evaluation:
        """Scores the validation split, and shows some of the translations with the attention of one."""
        params = variables["params"]
        hypotheses: list[Any] = []
        sums: dict[str, Any] = {}
        for batch in data.validation_batches:
            add_sums(sums, self._evaluation_loss(variables, batch))
        metrics = {f"validation/{name}": mean for name, mean in means(sums).items()}
        if data.validation_pairs:
            sources, references = zip(*data.validation_pairs, strict=True)
            greedy = dataclasses.replace(self.config.decoding, beam_size=1, samples=0)
            hypotheses = self.translate(params, sources, greedy)
            found = self.score_hypotheses(hypotheses, sources, references)
            metrics |= {f"validation/{name}": value for name, value in found.items()}
        return Evaluation(metrics, make_samples(self, params, data.validation_pairs, hypotheses))

    def score_hypotheses(
        self, hypotheses: list[str], sources: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """{name: score} of what `translate` made of the sources: the scores during training."""
        del sources
        return {"bleu": bleu(hypotheses, references).value}

    def show_reference(self, source: str, reference: str) -> str:
        """A reference in the form of the texts that `translate` returns."""
        del source
        return reference

    def target_tokens(self, hypothesis: str) -> str:
        """The text that the model reads and predicts, of one that `translate` returned."""
        return hypothesis

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields translations and scores; on the test split of the built-in language also its challenges."""
        return report_split(self, parameters_of(variables), split)

    def translate(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None
    ) -> list[str]:
        """Texts -> texts by the config's search, or by another `DecodingConfig`."""
        return [found[0].text for found in self.hypotheses(params, sentences, decoding)]

    def hypotheses(
        self, params: Any, sentences: Iterable[str], decoding: DecodingConfig | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """See `tfm.tasks.translation.pipeline.translate_texts`, whose options are `n_best` and `prefixes`."""
        decoding = decoding or self.config.decoding
        return translate_texts(self.model, params, self.tokenizer, sentences, decoding, **options)

    def score(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> list[np.ndarray]:
        """See `tfm.tasks.translation.pipeline.score_texts`."""
        return score_texts(self.model, params, self.tokenizer, sources, targets, self.config.decoding)

    def align(self, params: Any, sources: Iterable[str], targets: Iterable[str]) -> list[Links]:
        """See `tfm.tasks.translation.pipeline.align_texts`."""
        return align_texts(self.model, params, self.tokenizer, sources, targets, self.config.decoding)


def plan_model(config: Config) -> Any:
    """The Linen module of a run before there is a vocabulary: it has the size that the config asks for.

    Raises:
      UserError: it does not translate.
    """
    model = models.find(config.model.name).Model(config.model, vocabulary_size=config.data.vocabulary_size)
    check_translates(model)
    return model


def create(config: Config, workdir: str, *, new: bool = True) -> Translation:
    """The task of a run, with the tokenizer in `workdir`; raises as `prepare_tokenizer`."""
    return Translation(config, prepare_tokenizer(config, workdir, new=new))


def prepare_tokenizer(config: Config, workdir: str, *, new: bool) -> Tokenizer:
    """The tokenizer in `workdir`; a `new` run is checked and trains it on its training pairs.

    Raises:
      UserError: the data or the tokenizer cannot be used (all problems are in its message), or the model of a
        new run is larger than the memory.
    """
    path = os.path.join(workdir, VOCABULARY_FILE)
    if new:  # before minutes of training a tokenizer
        check_training_fits(plan_model(config), config.training)
        check_batches_fit(config.data.batch_tokens)
        _check_data(config.data, resumed=os.path.exists(path))
    if new and not os.path.exists(path):
        pairs = open_pairs(config.data, "train")
        log.info("Training a vocabulary of %s word pieces", f"{config.data.vocabulary_size:,}")
        Tokenizer.train(
            sample_evenly(pairs, config.data.vocabulary_pairs),
            config.data.vocabulary_size,
            path,
            symbols=sorted(set(split_tags(config.data.tags)) - {""}),
        )
    return Tokenizer.load(path)


def fingerprint(config: Config, split: str) -> str:
    """Identity of the content of a split."""
    return open_pairs(config.data, split).fingerprint


def _check_data(data, resumed):
    """Checks all splits; a resumed run does not end for its test split, which training does not read."""
    check_splits(data, SPLITS[:2] if resumed else SPLITS)
    if not resumed:
        check_folder(data.cache)
    for problem in find_problems(data, ["test"]) if resumed else ():
        log.warning("The test split cannot be used: %s", problem)


def sample_evenly(pairs: Any, most: int) -> Iterator[str]:
    """Yields both texts of at most `most` pairs from all over the source."""
    stride = -(-len(pairs) // most)
    return itertools.chain.from_iterable(itertools.islice(pairs, 0, None, stride))


def shift_right(targets: Array, positions: Array) -> jax.Array:
    """Decoder input [B, L]: each sentence's tokens one place to the right, BOS at its position 0."""
    shifted = jnp.roll(targets, 1, axis=-1)
    return jnp.where(positions == 0, BOS_ID, shifted)
