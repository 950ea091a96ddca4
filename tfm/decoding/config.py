"""The configs of translation and generation."""

import dataclasses
import functools
import math

from tfm.config import OnResume, check_fields, field, field_like
from tfm.decoding.mbr import UTILITIES
from tfm.errors import UserError

option = functools.partial(field, resume=OnResume.FREE)  # Training does not depend on decoding.
MAX_TOKENS = 65_536  # limit of an input, and of the tokens that an output may have beyond its input
# Maximum logarithm of the length penalty. float32 can represent exp(88). The margin is for outputs that are
# longer than the config says, because they begin with a prefix.
MAX_PENALTY_LOG = 80.0


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Options of translation. The defaults are the paper's (section 6.1)."""

    beam_size: int = option(
        4,
        "Number of hypotheses in the beam. 1 means greedy search. Sampling ignores it.",
        minimum=1,
        maximum=1000,
        unit="hypotheses",
    )
    length_penalty: float = option(
        0.6,
        "Exponent of the length penalty (alpha in Wu et al. 2016, equation 14). Larger values favour longer "
        "outputs. Sampling ignores it.",
        minimum=0,
        maximum=10,
    )
    coverage_penalty: float = option(
        0.0,
        "Weight of the coverage penalty (beta in Wu et al. 2016, equation 14). It favours outputs that "
        "attend to the whole input. 0, as in the paper, turns it off. Greedy search and sampling ignore it.",
        minimum=0,
        maximum=100,
    )
    min_length: int = option(
        1,
        "Minimum number of tokens in an output, including EOS.",
        minimum=1,
        maximum=MAX_TOKENS,
        unit="tokens",
    )
    max_extra_tokens: int = option(
        50,
        "Maximum number of tokens that an output may have beyond the number of tokens in its input.",
        minimum=0,
        maximum=MAX_TOKENS,
        unit="tokens",
    )
    no_repeat_ngram: int = option(
        0,
        "Length of the n-grams of tokens that an output may have only once. 0 allows all repetitions.",
        minimum=0,
        maximum=1000,
        unit="tokens",
    )
    repetition_penalty: float = option(
        1.0,
        "Divisor of the positive logits, and factor of the negative logits, of tokens that the output "
        "already has (Keskar et al. 2019, who use 1.2). 1 turns it off.",
        minimum=1,
        maximum=1000,
    )
    samples: int = option(
        0,
        "Number of samples for each sentence, for minimum Bayes risk decoding (Eikema and Aziz 2020). The "
        "translation is the sample that agrees best with all samples. 0 uses a search instead of samples.",
        minimum=0,
        maximum=1000,
        unit="samples",
    )
    utility: str = option(
        "chrf", "Sentence metric that measures the agreement of two samples.", choices=tuple(UTILITIES)
    )
    temperature: float = option(
        1.0,
        "Divisor of the logits for samples. To always take the most probable token, set samples=0 and "
        "beam_size=1. A search ignores it.",
        minimum=0.001,
        maximum=1000,
    )
    top_k: int = option(
        0,
        "Number of most probable tokens that can be sampled. 0 means all tokens. A search ignores it.",
        minimum=0,
        maximum=10_000_000,
        unit="tokens",
    )
    top_p: float = option(
        1.0,
        "Probability of the nucleus. Samples are drawn from the smallest set of most probable tokens whose "
        "total probability reaches it. A search ignores it.",
        minimum=1e-6,
        maximum=1,
    )
    # JAX ignores the bits of a seed above 32.
    seed: int = option(0, "Random seed of the samples.", minimum=0, maximum=2**32 - 1)
    attention_layer: int = option(
        -1,
        "Index of the decoder layer whose attention to the source, averaged over heads, gives alignments and "
        "coverage. Negative numbers count from the last layer.",
        minimum=-1000,
        maximum=999,
    )
    batch_size: int = option(
        64, "Maximum number of sentences in a batch.", minimum=1, maximum=65_536, unit="sentences"
    )
    max_input: int = option(
        256,
        "Maximum number of tokens in an input, including EOS. Models omit words of inputs that are much "
        "longer than their training inputs.",
        minimum=2,
        maximum=MAX_TOKENS,
        unit="tokens",
    )
    overflow: str = option(
        "split",
        "Treatment of inputs that are longer than max_input. split: translate parts that end at a sentence "
        "or word, and join the translations. cut: translate only the beginning. Both log a warning.",
        choices=("split", "cut"),
    )
    dtype: str = option(
        "",
        "Dtype of parameters and computation. Empty means the model's dtype. On a CPU, bfloat16 is slower "
        "than float32.",
        choices=("", "float32", "bfloat16"),
    )

    def __post_init__(self):
        check_fields(self, "decoding")
        _check_penalty(self, "max_input", "max_extra_tokens")

    @property
    def width(self) -> int:
        """Number of hypotheses of a sentence that are decoded at the same time."""
        return self.samples or self.beam_size

    @property
    def beam_coverage_penalty(self) -> float:
        """The coverage penalty of a beam search, or 0 for greedy search and samples, which ignore it."""
        return self.coverage_penalty if self.beam_size > 1 and not self.samples else 0.0


same_field = functools.partial(field_like, DecodingConfig)


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Options of generation. The default is one sample of each text, from the model's probabilities."""

    samples: int = option(
        1,
        "Number of samples for each text. 0 searches for the most probable continuation instead.",
        minimum=0,
        maximum=1000,
        unit="samples",
    )
    max_tokens: int = option(
        256,
        "Maximum number of tokens in a continuation. If the model has learned positions, a text and its "
        "continuation may need more positions than it has. Samples and greedy search then see a sliding "
        "window of the last tokens, and a beam sees only the last tokens of the text.",
        minimum=1,
        maximum=MAX_TOKENS,
        unit="tokens",
    )
    temperature: float = option(
        1.0,
        "Divisor of the logits for samples. Values below 1 favour probable tokens. To always take the most "
        "probable token, set samples=0. A search ignores it.",
        minimum=0.001,
        maximum=1000,
    )
    top_k: int = same_field("top_k")
    top_p: float = same_field("top_p")
    seed: int = same_field("seed")
    no_repeat_ngram: int = same_field("no_repeat_ngram")
    repetition_penalty: float = same_field("repetition_penalty")
    beam_size: int = same_field("beam_size", 1)
    length_penalty: float = same_field("length_penalty", 0.0)
    batch_size: int = option(
        16, "Maximum number of texts in a batch.", minimum=1, maximum=65_536, unit="texts"
    )
    dtype: str = same_field("dtype")

    def __post_init__(self):
        check_fields(self, "decoding")
        _check_penalty(self, "max_tokens")

    @property
    def width(self) -> int:
        """Number of hypotheses of a text that are decoded at the same time."""
        return self.samples or self.beam_size


def _check_penalty(config: DecodingConfig | GenerationConfig, *limits: str) -> None:
    """Raises a UserError if the length penalty of a longest output is not within float32.

    Args:
      config: the config.
      limits: names of the fields whose sum is the maximum number of tokens of an output.
    """
    max_length = sum(getattr(config, name) for name in limits)
    log_length = math.log((5 + max_length) / 6)
    if config.length_penalty * log_length > MAX_PENALTY_LOG:
        largest = math.floor(10 * MAX_PENALTY_LOG / log_length) / 10
        raise UserError(
            f"Expected scores within float32, got decoding.length_penalty {config.length_penalty:g} for "
            f"outputs of up to {max_length:,} tokens. Lower it to at most {largest:g}."
        )
