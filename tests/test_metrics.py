"""Scores against sacreBLEU called directly, and their signatures."""

import pytest
import sacrebleu

from tfm import metrics

HYPOTHESES = ["Der Hund schläft im Haus.", "Sie sagte: „Ja, gern!“"]
REFERENCES = ["Der Hund schläft in dem Haus.", "Er sagte: „Ja, gern!“"]


def by_name(hypotheses=HYPOTHESES, references=REFERENCES):
    return {score.name: score for score in metrics.scores(hypotheses, references, "de")}


def test_bleu_is_sacrebleus():
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert metrics.bleu(HYPOTHESES, REFERENCES).value == expected
    assert by_name()["BLEU"].value == expected
    assert "tok:13a" in by_name()["BLEU"].signature


def test_a_perfect_translation_scores_100_everywhere():
    assert all(score.value == pytest.approx(100) for score in by_name(REFERENCES).values())


def test_case_counts_only_where_the_name_says_so():
    upper = [text.upper() for text in REFERENCES]
    scores = by_name(upper)
    assert scores["BLEU"].value < 50
    assert scores["BLEU, lowercased"].value == pytest.approx(100)
    assert scores["BLEU, Moses, lowercased"].value == pytest.approx(100)


def test_each_signature_tells_the_version_and_moses_its_tokenizer():
    scores = by_name()
    assert all(f"version:{sacrebleu.__version__}" in score.signature for score in scores.values())
    assert "tok:moses-sacremoses-" in scores["BLEU, Moses, lowercased"].signature


def test_moses_tokens_are_not_escaped():
    assert metrics.moses_tokenizer("de")("Er sagte: „Ja & nein!“") == "Er sagte : „ Ja & nein ! “"


def test_exact_match_counts_whole_sentences():
    assert metrics.exact_match(["a", "b ", "c", "d"], ["a", "b", "c", "d"]) == 75
