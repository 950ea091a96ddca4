"""Scores of translations: sacreBLEU's, each with the signature that says how to repeat it. No JAX here."""

import functools
from importlib.metadata import version
from typing import NamedTuple

import sacrebleu
import sacremoses


class Score(NamedTuple):
    """A corpus score: its name, its value (0 to 100) and its signature."""

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name:<25}{self.value:6.2f}  {self.signature}"


def bleu(hypotheses, references):
    """Corpus BLEU of sacreBLEU's defaults (13a, cased) against one reference each: 0 to 100."""
    return _corpus(sacrebleu.BLEU(), "BLEU", hypotheses, references)


def scores(hypotheses, references, language):
    """The scores that `eval.py` prints.

    Args:
      hypotheses, references: texts, detokenised, of equal number.
      language: of the references, for Moses tokenisation.

    Returns:
      list of `Score`: BLEU, lowercased BLEU, chrF, and BLEU of lowercased Moses tokens, which publications on
      Multi30k print.
    """
    tokens = moses_tokenizer(language)
    lowered = [[tokens(text.lower()) for text in side] for side in (hypotheses, references)]
    moses = _corpus(sacrebleu.BLEU(tokenize="none", force=True), "BLEU, Moses, lowercased", *lowered)
    moses_signature = moses.signature.replace("tok:none", f"tok:moses-sacremoses-{version('sacremoses')}-lc")
    return [
        bleu(hypotheses, references),
        _corpus(sacrebleu.BLEU(lowercase=True), "BLEU, lowercased", hypotheses, references),
        moses._replace(signature=moses_signature),
        _corpus(sacrebleu.CHRF(), "chrF2", hypotheses, references),
    ]


def exact_match(hypotheses, references):
    """Per cent of hypotheses that equal their reference to the letter."""
    pairs = list(zip(hypotheses, references, strict=True))
    return 100 * sum(hypothesis == reference for hypothesis, reference in pairs) / len(pairs)


def moses_tokenizer(language):
    """Text -> its Moses tokens joined by spaces, nothing escaped."""
    tokenizer = sacremoses.MosesTokenizer(language)
    return functools.partial(tokenizer.tokenize, return_str=True, escape=False)


def _corpus(metric, name, hypotheses, references):
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, value, str(metric.get_signature()))
