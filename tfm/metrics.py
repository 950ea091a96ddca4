"""Scores of translations, all computed by sacreBLEU. Host side: no JAX here."""

import sacrebleu


def bleu(hypotheses, references, **options):
    """Corpus BLEU by sacreBLEU's defaults (13a, cased, one reference); `.score` is 0 to 100."""
    return sacrebleu.corpus_bleu(list(hypotheses), [list(references)], **options)
