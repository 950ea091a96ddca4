"""Tests of an exported page in a headless Chromium: what it computes equals what JAX computes."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from tests.support.browser import find_chromium, open_browser
from tests.support.commands import run_command
from tests.support.live_page import logits_of_page, wait, wait_for_model
from tests.support.packed import unpack
from tests.support.programs import initialize
from tests.support.tiny import randomize_weights
from tests.support.tokenizers import train_model
from tfm import tasks
from tfm.commands.config_files import read_config_file
from tfm.data.config import VOCABULARY_FILE
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.export.page import make_page
from tfm.interpret.switches import write_script
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Translation
from tfm.testing.models import quick_jit
from tfm.visualize.live import Example, LiveExamples
from tfm.workdir import runs
from tfm.workdir.bundle import flatten, unflatten

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
CROSS = "decoder.layers_0.cross_attention.head_outputs"
SUBLAYER = "encoder.layers_1.feed_forward_residual.sublayer_output"
SENTENCES = ["red dog", "small blue bird sleeps", "big cat runs", "green"]
SIZES = {"d_model": 32, "d_ff": 24, "heads": 4, "encoder_layers": 2, "decoder_layers": 3}
MODELS = {
    name: TransformerConfig(**SIZES, **fields)
    for name, fields in {
        "paper": {},
        "pre": {
            "norm_order": "pre",
            "norm": "rms_norm",
            "gated": True,
            "activation": "swish",
            "attention_bias": True,
            "key_value_heads": 2,
            "positions": "rotary",
        },
        "norm then add": {
            "norm_order": "norm_then_add",
            "activation": "gelu_tanh",
            "positions": "learned",
            "max_positions": 512,
            "tied_embeddings": "two",
            "logits_bias": True,
        },
        "deep norm": {
            "deep_norm": True,
            "positions": "concatenated",
            "first_position": 2,
            "key_features": 6,
            "value_features": 10,
            "scale_attention": False,
        },
        "three tables": {
            "positions": "interleaved_and_rotary",
            "tied_embeddings": "none",
            "embedding_norm": True,
            "scale_embedding": False,
        },
        "no positions": {"positions": "none", "gated": True, "activation": "sigmoid", "key_value_heads": 1},
    }.items()
}
TEXTS = [
    *("red dog", "  two  blanks\u00a0and\u3000wide ", "caf\u00e9 cafe\u0301", "e\u0323\u0307 \u1eb1"),
    *("\uff11\uff12 \uff21\uff22 \ufb01 \u00bd \u2122 \u2103", "\ufdfa \u01c4 \u2177", "\u65e5\u672c\u8a9e"),
    *("\u2581 under \u2581\u2581", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\x01 control \x7f"),
    *("\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u200bzero\u200dwidth\ufeff"),
    *("<s> </s> <0x41> <unk>", "a" * 40, "red\u2028dog", "", "   "),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        page.set_width(1400)
        yield page


@pytest.fixture
def show(browser, tmp_path):
    """Returns a function that opens a page and waits for its model. Fails if the page reports problems."""

    def open_page(text):
        path = tmp_path / "index.html"
        path.write_text(text, encoding="utf-8")
        browser.open(path.as_uri())
        wait_for_model(browser)
        return browser

    yield open_page
    problems, browser.problems = browser.problems, []
    assert problems == []


def ask(page, **request):
    """Returns the answer of the model of the page to a request of live.js."""
    return page.evaluate(f"inPage.answer({json.dumps(request)})")


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


def with_decoding(task, **fields):
    """Returns a task with another search."""
    decoding = dataclasses.replace(task.config.decoding, **fields)
    return Translation(dataclasses.replace(task.config, decoding=decoding), task.tokenizer)


def make_variables(task):
    """Returns random variables of a task, with biases and scales that are not 0 and 1."""
    like = {"params": initialize(task)}
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(name.endswith("scale"), 0.3, x.shape).astype(np.float32)
        for name, x in flatten(like).items()
    }
    return unflatten(arrays, like)


def compute_logits(task, variables, source, read):
    logits = quick_jit(functools.partial(task.model.apply, train=False))
    return np.asarray(logits(variables, np.array([source]), np.array([read])))[0]


def parameters_of(page, variables):
    """Returns the rounded parameters that the page computes with, as variables."""
    script = (
        "Object.entries(inPage.answers.model.parameters).map(([name, { numbers }]) => [name, [...numbers]])"
    )
    numbers = dict(page.evaluate(script))
    arrays = {
        name: np.array(numbers[name], np.float32).reshape(x.shape) for name, x in flatten(variables).items()
    }
    return unflatten(arrays, variables)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_jax(name, run, tiny_run, show):
    task = Translation(dataclasses.replace(run.task.config, model=MODELS[name]), run.task.tokenizer)
    variables = make_variables(task)
    page = show(make_page(task, variables, str(tiny_run), name))
    rounded = parameters_of(page, variables)
    for (key, ours), before in zip(flatten(rounded).items(), flatten(variables).values(), strict=True):
        np.testing.assert_allclose(ours, before, atol=1e-4, err_msg=key)
    source, read = (np.random.default_rng(1).integers(4, len(task.tokenizer), n).tolist() for n in (14, 11))
    expected = compute_logits(task, rounded, source, [1, *read])
    np.testing.assert_allclose(logits_of_page(page, source, [1, *read]), expected, atol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_typed_sentences_are_translated_like_tfm_translate(beam_size, run, tiny_run, show):
    task = with_decoding(run.task, beam_size=beam_size, min_length=3)
    page = show(make_page(task, run.variables, str(tiny_run), "tiny"))
    expected = task.translate(run.params, SENTENCES)
    assert all(expected)
    for sentence, translation in zip(SENTENCES, expected, strict=True):
        page.evaluate("byId('live-text').focus()")
        page.evaluate("byId('live-text').select()")
        page.insert(sentence)
        page.press("Enter")
        wait(page, f"pending === null && exampleNow().title === {json.dumps(sentence)}")
        assert page.evaluate("exampleNow().result") == translation


def check_equal(ours, expected, path="answer"):
    """Checks that JSON of the page equals JSON of `LiveExamples`, except that numbers are rounded."""
    if isinstance(expected, dict) and "data" in expected and "scale" in expected:
        np.testing.assert_allclose(unpack(ours), unpack(expected), atol=1e-3, err_msg=path)
    elif isinstance(expected, dict):
        assert ours.keys() == expected.keys(), path
        for key, value in expected.items():
            check_equal(ours[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(ours) == len(expected), path
        for i, value in enumerate(expected):
            check_equal(ours[i], value, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert ours == pytest.approx(expected, abs=1e-3), path
    else:
        assert ours == expected, path


@pytest.mark.parametrize(
    "off",
    [
        [],
        [[CROSS, 1]],
        [[CROSS, 3], [CROSS, 1], [SUBLAYER, None]],
        [["encoder.embeddings", 1], ["decoder.embeddings", 0], [SUBLAYER, None], [CROSS, 0]],
    ],
)
def test_answers_equal_those_of_tfm_explore(off, run, tiny_run, show):
    def make_python(example, edits):
        text = json.dumps(example, ensure_ascii=False)
        return write_script("Translator", repr(tiny_run.name), edits, f"translate([{text}])")

    page = show(make_page(run.task, run.variables, str(tiny_run), "tiny"))
    server = LiveExamples(run.task, parameters_of(page, run.variables), make_python, max_tokens=64)
    server.make_page([Example(text) for text in run.task.default_examples()], "tiny", "/")
    request = {"text": "small blue żaba sleeps", "off": off, "known": [0, 1]}
    check_equal(ask(page, **request), json.loads(json.dumps(server.answer(request))))


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "nmt_nfkc"},
        {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True, "vocab_size": 400},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {
            "normalization_rule_name": "nfkc",
            "byte_fallback": True,
            "vocab_size": 400,
            "add_dummy_prefix": False,
        },
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "byte_fallback": True, "vocab_size": 400},
    ],
)
def test_texts_have_the_ids_of_sentencepiece(options, run, tmp_path, show):
    content = train_model(model_type="bpe", **options)
    (tmp_path / VOCABULARY_FILE).write_bytes(content)
    task = Translation(run.task.config, WordPieces(content))
    page = show(make_page(task, make_variables(task), str(tmp_path), "run"))
    ids = page.evaluate(f"{json.dumps(TEXTS)}.map((text) => inPage.answers.tokenizer.encode(text))")
    assert ids == task.tokenizer.encode(TEXTS)
    texts = page.evaluate(f"{json.dumps(ids)}.map((ids) => inPage.answers.tokenizer.decode(ids))")
    assert texts == [task.tokenizer.decode(each).strip() for each in ids]


@pytest.mark.parametrize(
    ("text", "message"),
    [(" \n", "Expected a sentence to translate"), ("red dog " * 2500, "at most 64 tokens, got ")],
)
def test_examples_that_cannot_be_used_are_answered_by_a_message(text, message, run, tiny_run, show):
    page = show(make_page(run.task, run.variables, str(tiny_run), "tiny"))
    page.evaluate(f"byId('live-text').value = {json.dumps(text)}")
    page.point("#live-look", click=True)
    wait(page, f"byId('live-status').textContent.includes({json.dumps(message)})")


def test_text_never_becomes_html(run, tiny_run, show):
    page = show(make_page(run.task, run.variables, str(tiny_run), "</title><img src=x>"))
    page.evaluate("byId('live-text').focus()")
    page.insert("<img src=x onerror=alert(1)></script>")
    page.press("Enter")
    wait(page, "exampleNow().title.startsWith('<img')")
    page.point("#heads [data-layer='0'][data-head='1']", click=True)
    wait(page, "view.other >= 0 && pending === null")
    assert page.evaluate("document.querySelectorAll('img').length") == 0


def test_controls_have_names(run, tiny_run, show):
    page = show(make_page(run.task, run.variables, str(tiny_run), "tiny"))
    controls = [
        (role, name)
        for role, name in page.list_controls()
        if role in ("button", "textbox", "slider", "combobox")
    ]
    assert ("textbox", Translation.example_help) in controls
    assert [role for role, name in controls if not name.strip()] == []


def test_page_of_the_quick_start_is_small_and_exact(show, tmp_path):
    config, _ = read_config_file("quickstart")
    task = tasks.find(config.task).create(config, str(tmp_path))
    variables = {"params": initialize(task)}
    text = make_page(task, variables, str(tmp_path), "quickstart")
    assert len(text.encode()) < 4_000_000
    page = show(text)
    source, target = task.tokenizer.encode(["The small dog sleeps.", "Der kleine Hund schläft."])
    logits = logits_of_page(page, [*source, 2], [1, *target])
    expected = compute_logits(task, variables, [*source, 2], [1, *target])
    np.testing.assert_allclose(logits, expected, atol=1e-3)


def test_command_writes_the_page(tiny_run, browser, tmp_path):
    result = run_command("export", f"--workdir={tiny_run}", f"--output={tmp_path / 'out'}", "--format=page")
    assert result.code == 0, result.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]
    browser.open((tmp_path / "out" / "index.html").as_uri())
    wait_for_model(browser)
    assert browser.evaluate("document.title") == f"{tiny_run.name}, training step 6"
    assert browser.problems == []
