"""Translator and translation of lines: order, empty and over-long input."""

import io
import subprocess
import sys

import numpy as np
import pytest

import tfm
from tfm import runs
from tfm.translate import translate_lines


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator.load(str(tiny_run))


def test_texts_come_back_in_order_whatever_stands_beside_them(translator):
    texts = ["red dog", "a", "big green bird sleeps runs red", "cat runs", ""]
    together = translator.translate(texts, beam_size=2)
    alone = [translator.translate([text], beam_size=2)[0] for text in texts]
    assert together == alone
    assert together[-1] == ""


def test_no_texts_give_no_texts(translator):
    assert translator.translate([]) == []


def test_input_over_the_limit_is_cut_with_a_warning(translator, caplog):
    long = "red dog " * 40
    with caplog.at_level("WARNING", "tfm"):
        cut = translator.translate([long], beam_size=1, max_input=8)
    assert "to its first 8" in caplog.text
    assert cut == translator.translate([long], beam_size=1, max_input=8)


def test_lines_are_translated_in_chunks_and_none_is_lost(translator):
    lines = ["red dog", "", "cat", "blue bird runs"] * 3
    target = io.BytesIO()
    translate_lines(translator, io.BytesIO("\n".join(lines).encode()), target, at_once=5)
    assert target.getvalue().decode().split("\n")[:-1] == translator.translate(lines)


def test_scores_are_log_probabilities_of_the_pair(tiny_run):
    """Against the model's full forward pass, one pair at a time."""
    import jax

    run = runs.load(str(tiny_run))
    sources, targets = ["red dog", "big cat runs fast"], ["rot hund", "gross"]
    found = run.task.score(run.params, sources, targets)
    for source, target, score in zip(sources, targets, found, strict=True):
        source_ids = [*run.task.vocabulary.encode([source])[0], 2]
        target_ids = [*run.task.vocabulary.encode([target])[0], 2]
        logits = run.task.model.apply(
            {"params": run.params}, np.array([source_ids]), np.array([[1, *target_ids[:-1]]]), train=False
        )
        log_probabilities = np.asarray(jax.nn.log_softmax(logits[0]))
        assert score == pytest.approx(log_probabilities[range(len(target_ids)), target_ids].sum(), rel=1e-4)


def test_importing_tfm_touches_no_jax():
    code = "import sys, tfm; assert 'jax' not in sys.modules and 'flax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
