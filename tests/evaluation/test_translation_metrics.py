"""Tests of translation scores and their signatures against sacreBLEU and published reference lengths.

The tests of the lengths need the folder in the environment variable TFM_TEST_DATA. The folder has the German
references newstest/newstest2014.en-de.de and multi30k/test_2016_flickr.de with one sentence per line.
"""

import os
import pathlib
import sys

import pytest
import sacrebleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from tfm.errors import UserError
from tfm.evaluation import translation_metrics

HYPOTHESES = ["Der Hund schläft im Haus.", "Sie sagte: „Ja, gern!“", "Das Blau-Gelb-Rot der Fahne weht."]
REFERENCES = ["Der Hund schläft in dem Haus.", "Er sagte: „Ja, gern!“", "Das Blau-Gelb-Rot der Fahne wehte."]
PAPER = "BLEU, Moses, hyphens split"
DIRECT = {
    "BLEU": sacrebleu.BLEU(),
    "BLEU, intl": sacrebleu.BLEU(tokenize="intl"),
    "BLEU, lowercased": sacrebleu.BLEU(lowercase=True),
    "chrF2": sacrebleu.CHRF(),
    "TER": sacrebleu.TER(),
}
DATA = os.environ.get("TFM_TEST_DATA")
NEWSTEST, MULTI30K = "newstest/newstest2014.en-de.de", "multi30k/test_2016_flickr.de"


def by_name(hypotheses=HYPOTHESES, references=REFERENCES):
    return {score.name: score for score in translation_metrics.scores(hypotheses, references, "de")}


def values(hypotheses=HYPOTHESES, references=REFERENCES):
    return {name: score.value for name, score in by_name(hypotheses, references).items()}


def test_bleu_is_the_first_score():
    assert next(iter(by_name().values())) == translation_metrics.bleu(HYPOTHESES, REFERENCES)


def test_scoring_leaves_the_caches_of_sacrebleu_empty():
    translation_metrics.bleu(HYPOTHESES, REFERENCES)
    assert [one.__call__.cache_info().currsize for one in (Tokenizer13a, TokenizerRegexp)] == [0, 0]


@pytest.mark.parametrize("name", DIRECT)
def test_scores_equal_sacrebleu_and_its_signature(name):
    expected = DIRECT[name].corpus_score(HYPOTHESES, [REFERENCES]).score
    assert by_name()[name].value == expected
    assert by_name()[name].signature == str(DIRECT[name].get_signature())


def test_advice_of_sacrebleu_about_tokenized_texts_is_not_logged(caplog):
    tokenized = ["Der Hund schläft ."] * 100  # sacreBLEU gives its advice for 100 lines
    sacrebleu.BLEU().corpus_score(tokenized, [tokenized])
    assert "detokenize" in caplog.text
    caplog.clear()
    translation_metrics.scores(tokenized, tokenized, "de")
    translation_metrics.paired_bootstrap(tokenized, tokenized, tokenized)
    assert not caplog.records


def test_perfect_translation_has_perfect_scores():
    found = values(REFERENCES)
    assert found.pop("TER") == 0
    assert len(found) == 6
    assert all(value == pytest.approx(100) for value in found.values())


def test_scores_ignore_case_only_if_they_are_lowercased():
    found = values([text.upper() for text in REFERENCES])
    blind = {"BLEU, lowercased", "BLEU, Moses, lowercased"}
    assert all(found[name] == pytest.approx(100) for name in blind)
    assert found["TER"] == 0  # TER of sacreBLEU is lowercased, as case:lc in its signature says
    assert all(found[name] < 50 for name in found.keys() - blind - {"TER"})


def test_kinds_of_quotes_matter_in_bleu_but_not_in_the_bleu_of_the_paper():
    found = values([text.replace("„", '"').replace("“", '"') for text in REFERENCES])
    assert found[PAPER] == pytest.approx(100)
    assert found["BLEU"] < 99


def test_bleu_of_the_paper_is_not_smoothed():
    found = by_name(["Der Hund schläft im Haus."], ["Ein Hund ist im Garten."])
    assert found["BLEU"].value > 0
    assert found[PAPER].value == 0
    assert "smooth:none" in found[PAPER].signature


def test_signatures_have_version_and_tokenizer():
    found = by_name()
    moses = f"tok:moses-sacremoses-{translation_metrics.version('sacremoses')}"
    assert all(f"version:{sacrebleu.__version__}" in score.signature for score in found.values())
    assert f"|{moses}-lc|" in found["BLEU, Moses, lowercased"].signature
    assert f"|{moses}-punct-atat|" in found[PAPER].signature
    assert len({score.signature for score in found.values()}) == len(found) == 7


def test_only_the_default_bleu_has_the_plain_name():
    assert [name for name in by_name() if "," not in name] == ["BLEU", "chrF2", "TER"]


def test_moses_tokens_are_not_escaped():
    assert translation_metrics.moses_tokenizer("de")("Er sagte: „Ja & nein!“") == "Er sagte : „ Ja & nein ! “"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Ein Rich-Text-Format.", "Ein Rich ##AT##-##AT## Text ##AT##-##AT## Format ."),
        ("Er kam - und ging.", "Er kam - und ging ."),
        ("„Ja“, so’s …", '" Ja " , so \' s ...'),
        ("Der Dr.-Ing. kam.", "Der Dr. ##AT##-##AT## Ing. kam ."),
        ("x-y-z", "x ##AT##-##AT## y-z"),  # a quirk of the script of the authors
    ],
)
def test_paper_tokenizer_splits_hyphens_like_the_script_of_the_authors(text, tokens):
    assert translation_metrics.paper_tokenizer("de")(text) == tokens


@pytest.mark.skipif(not DATA, reason="TFM_TEST_DATA is not a folder with newstest/ and multi30k/")
@pytest.mark.parametrize(
    ("path", "tokenizer", "length"),
    [
        (NEWSTEST, Tokenizer13a(), 62_688),
        (NEWSTEST, translation_metrics.moses_tokenizer("de"), 63_078),
        (NEWSTEST, translation_metrics.paper_tokenizer("de"), 64_496),
        (MULTI30K, translation_metrics.lowercase_tokenizer("de"), 12_103),
    ],
    ids=["13a", "Moses", "Moses, hyphens split", "Moses, lowercased"],
)
def test_reference_length_equals_the_published_length(path, tokenizer, length):
    file = pathlib.Path(DATA) / path
    if not file.is_file():
        pytest.skip(f"TFM_TEST_DATA has no {path}")
    lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert sum(len(tokenizer(line).split()) for line in lines) == length


SCORERS = {
    "scores": lambda hypotheses, references: translation_metrics.scores(hypotheses, references, "de"),
    "bleu": translation_metrics.bleu,
    "exact_match": translation_metrics.exact_match,
    "sentence_chrf": translation_metrics.sentence_chrf,
    "paired_bootstrap first": lambda hypotheses, references: translation_metrics.paired_bootstrap(
        hypotheses, references, references
    ),
    "paired_bootstrap second": lambda hypotheses, references: translation_metrics.paired_bootstrap(
        references, hypotheses, references
    ),
}


@pytest.mark.parametrize("name", SCORERS)
def test_unequal_numbers_of_texts_are_errors(name):
    with pytest.raises(UserError, match=r"2 hypotheses .*3 references"):
        SCORERS[name](HYPOTHESES[:2], REFERENCES)
    with pytest.raises(UserError, match=r"3 hypotheses .*2 references"):
        SCORERS[name](HYPOTHESES, REFERENCES[:2])


@pytest.mark.parametrize("name", SCORERS)
def test_empty_lists_of_texts_are_errors(name):
    with pytest.raises(UserError, match="at least one sentence"):
        SCORERS[name]([], [])


def test_exact_match_counts_whole_sentences():
    assert translation_metrics.exact_match(["a", "b ", "c", "d"], ["a", "b", "c", "d"]) == 75


def test_sentence_chrf_equals_corpus_chrf_of_a_single_sentence():
    pairs = zip(HYPOTHESES, REFERENCES, strict=True)
    expected = [sacrebleu.CHRF().corpus_score([h], [[r]]).score for h, r in pairs]
    assert translation_metrics.sentence_chrf(HYPOTHESES, REFERENCES) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("language", "text", "tokenizer"),
    [
        ("zh", "我喜欢机器翻译。", "zh"),
        ("zh-TW", "我喜歡機器翻譯。", "zh"),
        ("zho_Hans", "我喜欢机器翻译。", "zh"),
        ("jpn_Jpan", "私は機械翻訳が好きです。", "char"),
        ("ja", "私は機械翻訳が好きです。", "char"),
        ("ko", "기계번역", "char"),
        ("th", "ฉันชอบการแปล", "char"),
        ("de", "Ich mag das sehr.", "13a"),
    ],
)
def test_perfect_translation_has_bleu_100_in_any_script(language, text, tokenizer):
    score = translation_metrics.scores([text], [text], language)[0]
    assert score.value == pytest.approx(100)
    assert f"tok:{tokenizer}|" in score.signature
    assert translation_metrics.bleu([text], [text], tokenizer) == score
    paired = translation_metrics.paired_bootstrap([text], [text], [text], tokenizer)[0]
    assert paired.first.score == pytest.approx(100)


CHINESE = ["我喜欢这只小狗因为它很可爱", "他今天没有来学校因为他生病了"]


@pytest.mark.parametrize(
    "language",
    [*("cmn", "cmn_Hans", "cn", "chi", "yue", "wuu"), *("jp", "kr", "bur", "tib", "de", "xx", "target")],
)
def test_identical_chinese_texts_have_bleu_100_whatever_the_code_is(language):
    found = translation_metrics.scores(CHINESE, CHINESE, language)
    bleus = {score.name: score.value for score in found if score.name.startswith("BLEU")}
    assert bleus == pytest.approx({"BLEU": 100, "BLEU, lowercased": 100})


@pytest.mark.parametrize(
    ("language", "texts", "expected"),
    [
        ("cn", (), "zh"),
        ("cmn_Hans", (), "zh"),
        ("zho_Hant", CHINESE, "zh"),
        ("jp", (), "char"),
        ("kr", (), "char"),
        ("bur", (), "char"),
        ("kr", ["Bariya ti ro kuru wono."], "13a"),  # Kanuri
        ("cmn_Latn", ["Wo xihuan zhe zhi xiao gou."], "13a"),
        ("xx", ["私は機械翻訳が好きです。"], "char"),
        ("xx", ["\ua997\ua9ae\ua9b6\ua9b1\ua997"], "char"),  # Javanese, which no rule names
        ("de", ["Ich mag 小狗 sehr.", "Ja."], "13a"),
        ("de", [""], "13a"),
    ],
)
def test_tokenizer_of_bleu_follows_the_code_and_the_letters(language, texts, expected):
    assert translation_metrics.bleu_tokenizer(language, texts) == expected


def test_korean_has_the_scores_of_spaced_words():
    text = "나는 기계 번역을 아주 많이 좋아합니다"
    found = {score.name: score.value for score in translation_metrics.scores([text], [text], "kor")}
    assert found["BLEU, intl"] == found["BLEU, Moses, lowercased"] == pytest.approx(100)


def test_bleu_of_chinese_equals_sacrebleu():
    hypotheses, references = ["我很喜欢机器翻译的书。"], ["我喜欢机器翻译的新书。"]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert translation_metrics.bleu(hypotheses, references, "zh").value == pytest.approx(expected)


def test_tokenizer_of_bleu_may_be_chosen_and_ter_left_out():
    found = translation_metrics.scores(["ab cd"], ["ab cd"], "ja", "13a", ter=False)
    assert "tok:13a|" in found[0].signature
    assert "TER" not in {score.name for score in found}


def test_tokenizer_without_its_package_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(UserError, match=r"bleu_tokenizer=ja-mecab.*sacrebleu\[ja\]"):
        translation_metrics.bleu(["a"], ["a"], "ja-mecab")


@pytest.mark.parametrize("name", DIRECT)
def test_scores_of_several_references_equal_sacrebleu(name):
    """The second sentence has one reference, as sacreBLEU allows."""
    others = [["Der Hund schläft daheim.", None, "Die Fahne weht."]]
    scores = translation_metrics.scores(HYPOTHESES, REFERENCES, "de", others=others)
    score = {score.name: score for score in scores}[name]
    assert score.value == DIRECT[name].corpus_score(HYPOTHESES, [REFERENCES, *others]).score
    assert score.signature == str(DIRECT[name].get_signature())
    assert score.signature.startswith("nrefs:var|")
    full = translation_metrics.bleu(HYPOTHESES, REFERENCES, others=[REFERENCES])
    assert full.signature.startswith("nrefs:2|")


def test_comparisons_of_several_references_use_the_best_reference():
    others = [["x"] * 3, HYPOTHESES]
    (comparison, *_) = translation_metrics.paired_bootstrap(HYPOTHESES, REFERENCES, REFERENCES, others=others)
    assert comparison.first.score == comparison.second.score == pytest.approx(100)
    assert translation_metrics.sentence_chrf(HYPOTHESES, REFERENCES, others) == [100] * 3


def test_further_references_need_a_text_for_each_hypothesis():
    hypotheses = ["the cat sat on the mat today", "a dog ran over the hill now"]
    for score in (translation_metrics.bleu, translation_metrics.sentence_chrf):
        with pytest.raises(UserError, match="2 hypotheses and 1 references"):
            score(hypotheses, ["x y z w", "p q r s"], others=[hypotheses[:1]])
