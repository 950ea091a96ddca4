"""Two regularizers that tfm does not have, on a part of Multi30k: word dropout, and distillation.

    for LANGUAGE in en de; do head -n 4000 train.$LANGUAGE > train4000.$LANGUAGE; done
    tfm train --config=benchmarks/regularizers.py --workdir=DIR --config.data.directory=FOLDER
    tfm evaluate --workdir=DIR --import=benchmarks

The recipe is `configs/multi30k_en_de.py` for the first 4,000 pairs: 2 + 2 layers with d_model 128 and d_ff
256, 2,000 word pieces, and 2,000 steps of 2,048 tokens. benchmarks/notes/multi30k.md has what each
regularizer gave. FOLDER has the files of Multi30k and train4000.
"""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp

from tfm.config import field, to_config_dict
from tfm.data.config import PairsConfig
from tfm.data.tokenizers.learning import UNK_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import shift_right
from tfm.errors import UserError
from tfm.losses import fused_linear_cross_entropy
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config as TranslationConfig
from tfm.tasks.translation.task import Translation, plan
from tfm.training.assets import prepare_tokenizer
from tfm.training.config import TrainingConfig
from tfm.training.frozen import SUFFIX, frozen_field, read_frozen
from tfm.training.task import Context, LossOutput

TEACHER = "teacher"


@dataclasses.dataclass(frozen=True)
class Config(TranslationConfig):
    """The config of a translation run with two more regularizers."""

    task: str = field("benchmarks.regularizers:TASK", "This task.")
    word_dropout: float = field(
        0.0, "Share of the input tokens of both sides that become the unknown piece.", minimum=0, less_than=1
    )
    teacher: str = frozen_field(TEACHER, "Run or export with the same vocabulary that teaches the model.")
    teacher_share: float = field(0.5, "Share of the teacher in the loss.", minimum=0, maximum=1)

    def __post_init__(self):
        super().__post_init__()
        if self.r_drop and (self.word_dropout or self.teacher):
            raise UserError("r_drop excludes word_dropout and teacher: set it to 0, or leave the others out.")


class Regularized(Translation):
    """Translation with word dropout and token-level distillation in the loss of training."""

    def __init__(self, config, tokenizer, teacher):
        super().__init__(config, tokenizer)
        self._teacher = teacher

    def constants(self):
        return self._teacher.variables if self._teacher else None

    def assets(self):
        teacher = {TEACHER + SUFFIX: self._teacher.fingerprint} if self._teacher else {}
        return super().assets() | teacher

    def loss(self, variables, batch, context):
        if not context.train or self.config.r_drop:
            return super().loss(variables, batch, context)
        inputs, targets = batch["inputs"], batch["targets"]
        read = shift_right(targets, batch["target_positions"])
        rngs = jax.random.split(context.row_rng)
        dropped = [
            drop_words(side, rng, self.config.word_dropout)
            for side, rng in zip((inputs, read), rngs, strict=True)
        ]
        (features, table), state = self.compute_features(variables, *dropped, batch, context)
        weights = (batch["target_segments"] > 0).astype(jnp.float32)
        metrics = fused_linear_cross_entropy(
            features, table, targets, weights, self.config.label_smoothing, self.config.loss_chunk_size
        )
        total, count = metrics.pop("loss")
        if not self._teacher:
            return LossOutput({"loss": (total, count)}, metrics, state)
        teacher, _ = self.compute_features(context.constants, inputs, read, batch, Context())
        taught = teach(features @ table.T, teacher[0] @ teacher[1].T, weights)
        share = self.config.teacher_share
        terms = {"loss": ((1 - share) * total, count), "teacher": (share * taught, count)}
        return LossOutput(terms, metrics, state)


def drop_words(tokens, rng, rate):
    """Replaces a share of the tokens [B, L] by the unknown piece. Padding, BOS and EOS stay."""
    dropped = jax.random.bernoulli(rng, rate, tokens.shape)
    return jnp.where(dropped & (tokens >= UNK_ID), UNK_ID, tokens)


def teach(logits, teacher_logits, weights):
    """Sums the cross-entropies of the student with the teacher's probabilities (Kim and Rush 2016).

    Args:
      logits, teacher_logits: [B, L, V].
      weights: [B, L], 0 for padding.
    """
    probabilities = jax.nn.softmax(teacher_logits)
    return -(probabilities * jax.nn.log_softmax(logits)).sum(-1).ravel() @ weights.ravel()


def create(config, workdir, *, new=True):
    tokenizer = prepare_tokenizer(config, workdir, plan, new=new)
    return Regularized(config, tokenizer, read_frozen(workdir, TEACHER) if config.teacher else None)


TASK = SimpleNamespace(Config=Config, create=create)


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=2, decoder_layers=2, d_model=128, d_ff=256, heads=4, dropout=0.3
            ),
            data=PairsConfig(
                kind="text",
                directory="data/multi30k",
                train="train4000",
                validation="val",
                test="test_2016_flickr",
                vocabulary_size=2000,
                batching="packed",
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=2000,
                schedule="linear_decay",
                warmup_steps=250,
                learning_rate_scale=0.35,
                log_every=100,
                eval_every=1000,
                checkpoint_every=1000,
                keep=1,
            ),
            decoding=DecodingConfig(beam_size=5, length_penalty=1.0, max_input=64),
        )
    )
