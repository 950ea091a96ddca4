"""The configs of translation and generation."""

import dataclasses
import functools
import math
from typing import ClassVar

from tfm.decoding.mbr import UTILITIES
from tfm.decoding.parameters import INT8
from tfm.errors import UserError
from tfm.fields import CHANGEABLE, check_fields, field, field_like

option = functools.partial(field, resume=CHANGEABLE)  # training does not depend on decoding
MAX_TOKENS = 65_536  # of an input, or of an output beyond its input
MAX_PENALTY_LOG = 80.0  # float32 can represent exp(88); a prefix may make an output longer


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Options of translation. The defaults are the paper's (section 6.1)."""

    beam_size: int = option(
        4,
        "Number of hypotheses in the beam. 1 is greedy search. Ignored if samples are drawn.",
        least=1,
        most=1000,
        unit="hypotheses",
    )
    length_penalty: float = option(
        0.6,
        "Exponent of the length penalty, alpha of Wu et al. 2016, equation 14. Larger values favour longer "
        "outputs. Ignored if samples are drawn.",
        least=0,
        most=10,
    )
    coverage_penalty: float = option(
        0.0,
        "Weight of the coverage penalty, beta of the same equation. The paper uses none. Only a beam of at "
        "least two hypotheses applies it.",
        least=0,
        most=100,
    )
    min_length: int = option(
        1, "Minimum tokens of an output, including EOS.", least=1, most=MAX_TOKENS, unit="tokens"
    )
    max_extra_tokens: int = option(
        50,
        "Maximum tokens of an output beyond the tokens of its input.",
        least=0,
        most=MAX_TOKENS,
        unit="tokens",
    )
    samples: int = option(
        0,
        "Number of samples of each sentence. The sample of minimum Bayes risk, which agrees best with all of "
        "them, is the translation (Eikema and Aziz 2020). 0 searches instead.",
        least=0,
        most=1000,
        unit="samples",
    )
    utility: str = option(
        "chrf", "Sentence metric that measures the agreement of samples.", choices=tuple(UTILITIES)
    )
    temperature: float = option(
        1.0,
        "Divisor of the logits of samples. For the most probable token, as with 0, set samples=0 and "
        "beam_size=1. A search ignores it.",
        least=0.001,
        most=1000,
    )
    top_k: int = option(
        0,
        "Number of most probable tokens that samples are drawn from, 0 for all. A search ignores it.",
        least=0,
        most=10_000_000,
        unit="tokens",
    )
    top_p: float = option(
        1.0,
        "Probability of the nucleus: samples are drawn from the fewest most probable tokens whose sum of "
        "probabilities reaches it. A search ignores it.",
        least=1e-6,
        most=1,
    )
    seed: int = option(0, "Random seed of samples. JAX ignores higher bits.", least=0, most=2**32 - 1)
    attention_layer: int = option(
        -1,
        "Decoder layer whose attention to the source, averaged over heads, gives alignments and coverage. "
        "Negative numbers count from the last layer.",
        least=-1000,
        most=999,
    )
    batch_size: int = option(64, "Maximum sentences in a batch.", least=1, most=65_536, unit="sentences")
    max_input: int = option(
        256, "Maximum tokens of an input, including EOS.", least=2, most=MAX_TOKENS, unit="tokens"
    )
    overflow: str = option(
        "split",
        "Treatment of longer inputs, with a warning. They are split at a boundary of sentences or words "
        "and their translations are joined, or they are cut.",
        choices=("split", "cut"),
    )
    dtype: str = option(
        "",
        "Data type of parameters and computation, empty for the model's. int8 quantizes parameters and their "
        "factors and keeps the model's type elsewhere. On a CPU, int8 is faster than float32 and bfloat16 is "
        "slower.",
        choices=("", "float32", "bfloat16", INT8),
    )

    RENAMED: ClassVar[dict[str, str]] = {"extra_length": "max_extra_tokens", "over_long": "overflow"}

    def __post_init__(self):
        check_fields(self, "decoding")
        max_length = self.max_input + self.max_extra_tokens
        if self.length_penalty * math.log((5 + max_length) / 6) > MAX_PENALTY_LOG:
            raise UserError(
                f"Expected scores within float32, got decoding.length_penalty {self.length_penalty:g} for "
                f"outputs of up to {max_length:,} tokens. Lower it, decoding.max_input or "
                "decoding.max_extra_tokens."
            )

    @property
    def width(self) -> int:
        """The number of hypotheses of a sentence that decode at once."""
        return self.samples or self.beam_size


same_field = functools.partial(field_like, DecodingConfig)


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Options of generation. By default each text has one sample from the model's own probabilities."""

    samples: int = option(
        1,
        "Number of samples of each text. 0 searches for the most probable continuation instead.",
        least=0,
        most=1000,
        unit="samples",
    )
    max_tokens: int = option(
        256,
        "Maximum tokens of a continuation. If the model has learned positions and a text with its "
        "continuation exceeds them, samples and greedy search see a sliding window of the last tokens, and a "
        "beam sees only the last tokens of the text.",
        least=1,
        most=MAX_TOKENS,
        unit="tokens",
    )
    temperature: float = option(
        1.0,
        "Divisor of the logits of samples. Values below 1 favour probable tokens. For the most probable "
        "token, as with 0, set samples=0. A search ignores it.",
        least=0.001,
        most=1000,
    )
    top_k: int = same_field("top_k")
    top_p: float = same_field("top_p")
    seed: int = same_field("seed")
    beam_size: int = same_field("beam_size", 1)
    length_penalty: float = same_field("length_penalty", 0.0)
    batch_size: int = option(16, "Maximum texts in a batch.", least=1, most=65_536, unit="texts")
    dtype: str = same_field("dtype")

    def __post_init__(self):
        check_fields(self, "decoding")

    @property
    def width(self) -> int:
        """The number of hypotheses of a text that decode at once."""
        return self.samples or self.beam_size
