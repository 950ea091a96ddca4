"""Scores of translations: sacreBLEU's, each with the signature that says how to repeat it. No JAX here."""

import functools
import math
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from tfm.errors import UserError
from tfm.evaluation.score import Score

RESAMPLES = 1000
# The Transformer authors' expression, letter for letter: matches share no character, so that a part of one
# letter splits on its left alone, "x-y-z" -> "x ##AT##-##AT## y-z". Published numbers count it so.
HYPHEN = re.compile(r"(\S)-(\S)")


class Comparison(NamedTuple):
    """One metric on two systems: sacreBLEU's `Result` of each (score, and mean ± ci of resampling), and p.

    p is nan where the resamples tell nothing.
    """

    name: str
    first: Result
    second: Result
    p_value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of sacreBLEU's defaults (13a, cased) against one reference each: 0 to 100."""
    return _corpus(sacrebleu.BLEU(), "BLEU", hypotheses, references)


def scores(hypotheses: Sequence[str], references: Sequence[str], language: str) -> list[Score]:
    """The scores that a publication prints.

    Args:
      hypotheses, references: lists of texts, detokenised, of equal number.
      language: of the references, for Moses tokenisation.

    Returns:
      list of `Score`: BLEU, the same with international tokenisation and lowercased, chrF, TER; BLEU of
      lowercased Moses tokens, which publications on Multi30k print; and BLEU of `paper_tokenizer`'s tokens
      without smoothing, which the Transformer paper prints.

    Raises:
      UserError: no texts, or unequal numbers of them.
    """
    sides = (hypotheses, references)
    return [
        bleu(*sides),
        _corpus(sacrebleu.BLEU(tokenize="intl"), "BLEU, intl", *sides),
        _corpus(sacrebleu.BLEU(lowercase=True), "BLEU, lowercased", *sides),
        _corpus(sacrebleu.CHRF(), "chrF2", *sides),
        _corpus(sacrebleu.TER(), "TER", *sides),
        _moses("BLEU, Moses, lowercased", "lc", lowercase_tokenizer(language), sides),
        _moses("BLEU, Moses, hyphens split", "punct-atat", paper_tokenizer(language), sides, "none"),
    ]


def paired_bootstrap(
    first: Sequence[str], second: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    """Whether two systems differ by more than the choice of sentences: sacreBLEU's paired bootstrap.

    The seed is sacreBLEU's own, which its environment variable SACREBLEU_SEED replaces; signatures tell it.

    Args:
      first, second: hypotheses of the systems.
      references: texts of the same number.

    Returns:
      list of `Comparison`: BLEU, chrF2 and TER.

    Raises:
      UserError: no texts, or unequal numbers of them.
    """
    for hypotheses in (first, second):
        _check(hypotheses, references)
    metrics = (sacrebleu.BLEU(), sacrebleu.CHRF(), sacrebleu.TER())
    test = PairedTest(
        [("first", first), ("second", second)],
        {type(metric).__name__: metric for metric in metrics},
        [references],
        test_type="bs",
        n_samples=RESAMPLES,
    )
    signatures, results = test()
    return [_comparison(name, results[name], str(signature)) for name, signature in signatures.items()]


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF2 of each sentence by itself.

    Raises:
      UserError: no texts, or unequal numbers of them.
    """
    _check(hypotheses, references)
    metric = sacrebleu.CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Per cent of hypotheses that equal their reference to the letter.

    Raises:
      UserError: no texts, or unequal numbers of them.
    """
    _check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return 100 * sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Text -> its Moses tokens joined by spaces, nothing escaped."""
    import sacremoses  # a quarter of a second, for these scores alone

    tokenizer = sacremoses.MosesTokenizer(language)
    return functools.partial(tokenizer.tokenize, return_str=True, escape=False)


def lowercase_tokenizer(language: str) -> Callable[[str], str]:
    """Text -> the Moses tokens of the lowercased text."""
    tokens = moses_tokenizer(language)
    return lambda text: tokens(text.lower())


def paper_tokenizer(language: str) -> Callable[[str], str]:
    """Text -> Moses tokens after normalising punctuation, hyphenated compounds split: the paper's evaluation.

    Its script replaces typographic quotes in hypotheses alone, because its reference file has none; here both
    sides are plain text and are normalised alike.
    """
    import sacremoses

    normalize = sacremoses.MosesPunctNormalizer(language).normalize
    tokens = moses_tokenizer(language)
    return lambda text: HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens(normalize(text)))


def _moses(name, label, tokens, sides, smoothing="exp"):
    """BLEU of both sides tokenised by `tokens`; the signature adds `label` to "moses"."""
    metric = sacrebleu.BLEU(tokenize="none", force=True, smooth_method=smoothing)
    score = _corpus(metric, name, *([tokens(text) for text in side] for side in sides))
    tokenizer = f"tok:moses-sacremoses-{version('sacremoses')}-{label}"
    return score._replace(signature=score.signature.replace("tok:none", tokenizer))


def _corpus(metric, name, hypotheses, references):
    _check(hypotheses, references)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    # They keep 65,536 lines each, with the tokenizer that read them: a run that evaluates often would grow.
    for tokenizer in (Tokenizer13a, TokenizerRegexp):
        tokenizer.__call__.cache_clear()
    return Score(name, value, str(metric.get_signature()))


def _comparison(name, scores, signature):
    first, second = scores
    # sacreBLEU counts resamples beyond the difference, not at it: p of two equal systems would be 1/1001.
    p_value = 1.0 if first.score == second.score else second.p_value
    if p_value < 1 and first.ci == second.ci == 0:  # all resamples are alike, as of one sentence
        p_value = math.nan
    return Comparison(name, first, second, p_value, signature)


def _check(hypotheses, references):
    if len(hypotheses) != len(references):
        raise UserError(
            f"Expected a hypothesis for each reference, got {len(hypotheses):,} hypotheses "
            f"and {len(references):,} references."
        )
    if not len(references):
        raise UserError("Expected at least one sentence to score, got none.")
