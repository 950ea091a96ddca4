"""Scores of translations by sacreBLEU, each with a signature to reproduce it. The module is free of JAX."""

import functools
import logging
import math
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from tfm.errors import UserError
from tfm.evaluation.score import Score

References = Sequence[Sequence[str | None]]  # further references: a text, or None, for each hypothesis
RESAMPLES = 1000
SLOW_TER_WORDS = 300  # words of a text for which TER takes seconds
log = logging.getLogger(__name__)
# The codes of ISO 639 (two letters, and both codes of three letters), usual wrong codes such as "cn", and the
# codes of scripts in ISO 15924, of languages whose words have no spaces, and of Korean.
CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh", "hak", "gan", "hsn", "cn", "hans", "hant", "hani")
OTHER_UNSPACED = (
    *("ja", "jpn", "jp", "jpan", "hira", "kana", "ko", "kor", "kr", "hang", "kore", "th", "tha", "thai"),
    *("lo", "lao", "laoo", "km", "khm", "khmr", "my", "mya", "bur", "mymr", "bo", "bod", "tib", "tibt"),
    *("dz", "dzo", "shn"),
)
HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af"
KANA = "\u3040-\u30ff"
HANGUL = "\uac00-\ud7af"
OTHER_SCRIPTS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
SCRIPTS = {script: re.compile(f"[{script}]") for script in (HAN, KANA, HANGUL, OTHER_SCRIPTS)}
LETTER = re.compile(r"[^\W\d_]")
MIN_SHARE = 0.1  # of the letters of references, for which a code of an unspaced language is believed
# This is exactly the expression of the Transformer authors' script, because published numbers depend on it.
# Its matches do not overlap, so a part of one letter is split only on its left: "x-y-z" becomes
# "x ##AT##-##AT## y-z".
HYPHEN = re.compile(r"(\S)-(\S)")


class Comparison(NamedTuple):
    """A comparison of two systems by one metric.

    Attributes:
      name: name of the metric.
      first, second: sacreBLEU's `Result` of each system: its score, and the mean and 95 % confidence interval
        (`ci`) over the resamples.
      p_value: probability of the difference if both systems were equally good; nan if all resamples are
        alike, for example because there is only one sentence.
      signature: sacreBLEU's signature.
    """

    name: str
    first: Result
    second: Result
    p_value: float
    signature: str


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a", others: References = ()
) -> Score:
    """Computes cased corpus BLEU, from 0 to 100, with a tokenizer of sacreBLEU.

    Args:
      hypotheses: the outputs.
      references: a reference for each hypothesis.
      tokenizer: name of one of sacreBLEU's tokenizers, such as "13a", "zh" or "none".
      others: lists of further references. Each list has a text, or None, for each hypothesis.

    Raises:
      UserError: if there are no texts, if the numbers of hypotheses and references differ, or the tokenizer
        needs a package or a download that is missing.
    """
    return _corpus(_bleu_metric(tokenize=tokenizer), "BLEU", hypotheses, references, others)


def bleu_tokenizer(language: str, references: Sequence[str] = ()) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language and its texts.

    The tokenizer 13a makes one token of a sentence without spaces, so that a perfect copy scores 0. Such
    languages use characters, because the tokenizers ja-mecab and ko-mecab need packages that may be missing.

    Args:
      language: a code such as "zh", "zh-TW", "cmn_Hans" or "jpn".
      references: texts in the language. They decide if their letters contradict the code or the code is
        unknown.

    Returns:
      "zh" for Chinese, "char" for other languages without spaces and for Korean, otherwise "13a".
    """
    parts = set(re.split("[-_]", language.lower()))
    named = "zh" if parts.intersection(CHINESE) else "char" if parts.intersection(OTHER_UNSPACED) else "13a"
    shares = _measure_scripts(references)
    share = sum(shares.values())
    if share > 1 / 2:
        written = "zh" if shares[HAN] == share else "char"
        return written if named == "13a" else named
    if references and share < MIN_SHARE:
        named = "13a"
    return "char" if named == "13a" and _has_single_tokens(references) else named


def has_spaces(references: Sequence[str]) -> bool:
    """Returns whether the words of texts are separated by spaces, as the tokenizers intl and Moses expect."""
    shares = _measure_scripts(references)
    return sum(shares.values()) - shares[HANGUL] <= 1 / 2 and not _has_single_tokens(references)


def _measure_scripts(texts: Sequence[str]) -> dict[str, float]:
    """Returns {script: share of the letters of texts} for the keys of `SCRIPTS`."""
    text = "".join(texts)
    letters = max(len(LETTER.findall(text)), 1)
    return {script: len(pattern.findall(text)) / letters for script, pattern in SCRIPTS.items()}


def _has_single_tokens(texts: Sequence[str]) -> bool:
    """Returns whether the tokenizer 13a makes a single token of most texts that are not empty."""
    counts = [len(Tokenizer13a()(text).split()) for text in texts]
    return 2 * counts.count(1) > sum(count > 0 for count in counts)


def scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    tokenizer: str = "",
    *,
    ter: bool = True,
    others: References = (),
) -> list[Score]:
    """Computes the scores that publications print. Logs which scores are left out or take long.

    Args:
      hypotheses, references: detokenised texts, a reference for each hypothesis.
      language: language code of the references, for the tokenizers.
      tokenizer: sacreBLEU's tokenizer for BLEU. By default, the language and the references decide.
      ter: whether to compute TER. It takes minutes for texts of more than a thousand words.
      others: further references, see `bleu`. Each score counts the best match, as sacreBLEU does, and its
        signature contains the number of references.

    Returns:
      A list of `Score` with BLEU, BLEU with international tokenisation, lowercased BLEU, chrF2, TER, BLEU of
      lowercased Moses tokens (as in publications on Multi30k), and BLEU of the tokens of `paper_tokenizer`
      without smoothing (as in the Transformer paper). The scores of international and Moses tokens are left
      out if the words of the references have no spaces. They would be 0 for a perfect translation.

    Raises:
      UserError: see `bleu`.
    """
    sides = (hypotheses, references, others)
    tokenizer = tokenizer or bleu_tokenizer(language, references)
    spaced = has_spaces(references)
    if not spaced:
        log.info("Leaving out BLEU of international and Moses tokens: the references have no spaces")
    if ter and max((text.count(" ") for text in references), default=0) > SLOW_TER_WORDS:
        log.info("Computing TER, which takes minutes for long texts. ter=False leaves it out")
    return [
        bleu(hypotheses, references, tokenizer, others),
        *([_corpus(_bleu_metric(tokenize="intl"), "BLEU, intl", *sides)] if spaced else []),
        _corpus(_bleu_metric(lowercase=True, tokenize=tokenizer), "BLEU, lowercased", *sides),
        _corpus(sacrebleu.CHRF(), "chrF2", *sides),
        *([_corpus(sacrebleu.TER(), "TER", *sides)] if ter else []),
        *(_moses_scores(language, sides) if spaced else []),
    ]


def paired_bootstrap(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    tokenizer: str = "13a",
    others: References = (),
) -> list[Comparison]:
    """Tests by sacreBLEU's paired bootstrap whether two systems differ by more than the choice of sentences.

    sacreBLEU chooses the random seed. Its environment variable SACREBLEU_SEED changes the seed, and the
    signatures contain it.

    Args:
      first, second: hypotheses of the two systems.
      references: a reference for each hypothesis.
      tokenizer: sacreBLEU's tokenizer for BLEU.
      others: further references, see `bleu`.

    Returns:
      A list of `Comparison` with BLEU, chrF2 and TER.

    Raises:
      UserError: see `bleu`.
    """
    for hypotheses in (first, second):
        _check(hypotheses, references, others)
    metrics = (_bleu_metric(tokenize=tokenizer), sacrebleu.CHRF(), sacrebleu.TER())
    all_references: Any = [references, *others]  # the types of sacreBLEU leave out None
    test = PairedTest(
        [("first", first), ("second", second)],
        {type(metric).__name__: metric for metric in metrics},
        all_references,
        test_type="bs",
        n_samples=RESAMPLES,
    )
    signatures, results = test()
    return [_comparison(name, results[name], str(signature)) for name, signature in signatures.items()]


def sentence_chrf(
    hypotheses: Sequence[str], references: Sequence[str], others: References = ()
) -> list[float]:
    """Computes the chrF2 of each sentence, from 0 to 100.

    Raises:
      UserError: if there are no texts, or the numbers of hypotheses and references differ.
    """
    _check(hypotheses, references, others)
    metric = sacrebleu.CHRF()
    rows = zip(hypotheses, references, *others, strict=True)
    return [
        metric.sentence_score(hypothesis, [text for text in texts if text is not None]).score
        for hypothesis, *texts in rows
    ]


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Returns the percentage of hypotheses that are identical to their reference.

    Raises:
      UserError: if there are no texts, or the numbers of hypotheses and references differ.
    """
    _check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return 100 * sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Returns a function from text to its Moses tokens, joined by spaces and without escapes."""
    import sacremoses  # imported here because it takes a quarter of a second

    tokenizer = sacremoses.MosesTokenizer(language)
    return functools.partial(tokenizer.tokenize, return_str=True, escape=False)


def lowercase_tokenizer(language: str) -> Callable[[str], str]:
    """Returns a function from text to the Moses tokens of the lowercased text, joined by spaces."""
    tokens = moses_tokenizer(language)
    return lambda text: tokens(text.lower())


def paper_tokenizer(language: str) -> Callable[[str], str]:
    """Returns a tokenizer as in the paper's evaluation, a function from text to tokens joined by spaces.

    The function normalises punctuation (Moses' normalize-punctuation), splits the text into Moses tokens and
    splits hyphenated compounds. The script of the paper's authors instead replaces single typographic
    characters (replace-unicode-punctuation), and only in hypotheses, because its reference file is tokenized
    already. Here both sides are plain text, so both are normalised.
    """
    import sacremoses

    normalize = sacremoses.MosesPunctNormalizer(language).normalize
    tokens = moses_tokenizer(language)
    return lambda text: HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens(normalize(text)))


def _moses_scores(language: str, sides: tuple[Sequence[str], Sequence[str], References]) -> list[Score]:
    """Returns the BLEU of Moses tokens as in publications on Multi30k and in the Transformer paper."""
    return [
        _moses("BLEU, Moses, lowercased", "lc", lowercase_tokenizer(language), sides),
        _moses("BLEU, Moses, hyphens split", "punct-atat", paper_tokenizer(language), sides, "none"),
    ]


def _moses(
    name: str,
    label: str,
    tokens: Callable[[str], str],
    sides: tuple[Sequence[str], Sequence[str], References],
    smoothing: str = "exp",
) -> Score:
    """Computes the BLEU of both sides tokenised by `tokens`. The signature contains `label`."""
    metric = _bleu_metric(tokenize="none", smooth_method=smoothing)
    hypotheses, references = ([tokens(text) for text in side] for side in sides[:2])
    others = [[text and tokens(text) for text in side] for side in sides[2]]
    score = _corpus(metric, name, hypotheses, references, others)
    tokenizer = f"tok:moses-sacremoses-{version('sacremoses')}-{label}"
    return score._replace(signature=score.signature.replace("tok:none", tokenizer))


def _bleu_metric(**options: Any) -> sacrebleu.BLEU:
    """Returns sacreBLEU's BLEU without its advice about tokenized texts. `tfm evaluate` logs such advice."""
    try:
        return sacrebleu.BLEU(force=True, **options)
    except (RuntimeError, ImportError, OSError) as error:  # a package or a download is missing
        message = f"bleu_tokenizer={options.get('tokenize')} cannot be used: {' '.join(str(error).split())}"
        raise UserError(message) from None


def _corpus(
    metric: Any, name: str, hypotheses: Sequence[str], references: Sequence[str], others: References = ()
) -> Score:
    """Returns the corpus score by a metric of sacreBLEU."""
    _check(hypotheses, references, others)
    value = metric.corpus_score(list(hypotheses), [list(references), *map(list, others)]).score
    # Each cache keeps 65,536 lines and their tokenizers. The memory of a run that evaluates often would grow.
    for tokenizer in (Tokenizer13a, TokenizerRegexp, TokenizerZh, TokenizerChar):
        tokenizer.__call__.cache_clear()
    return Score(name, value, str(metric.get_signature()))


def _comparison(name: str, scores: Sequence[Any], signature: str) -> Comparison:
    """Returns the `Comparison` of the sacreBLEU results of two systems, with corrected p-values."""
    first, second = scores
    # sacreBLEU counts only resamples with a larger difference, so p of two equal systems would be 1/1001.
    p_value = 1.0 if first.score == second.score else second.p_value
    if p_value < 1 and first.ci == second.ci == 0:  # all resamples are alike, for example with one sentence
        p_value = math.nan
    return Comparison(name, first, second, p_value, signature)


def _check(hypotheses: Sequence[str], references: Sequence[str], others: References = ()) -> None:
    """Raises a UserError if there are no texts, or the numbers of hypotheses and references differ."""
    for texts in (references, *others):
        if len(hypotheses) != len(texts):
            raise UserError(
                f"Expected a hypothesis for each reference, got {len(hypotheses):,} hypotheses "
                f"and {len(texts):,} references."
            )
    if not len(references):
        raise UserError("Expected at least one sentence to score, got none.")
