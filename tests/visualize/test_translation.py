"""What is kept of a translation: held to the search, to a forward pass and to the modules' own output."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.programs import count_programs
from tests.support.tiny import randomize_weights
from tfm import search
from tfm.decoding.score import attend_pairs, score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.layers import MultiHeadAttention
from tfm.layers.observe import read_attention
from tfm.testing.automaton import BOS, EOS, begin, next_state, random_table, reorder, step
from tfm.visualize import summaries, translation
from tfm.visualize.translation import Extension, examine, stack_values, trace_steps
from tfm.workdir import runs

SENTENCE = "red dog runs"


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def translated(run):
    return examine(run.task, run.params, SENTENCE)


@pytest.mark.long
def test_the_translation_is_the_one_of_the_search(run, translated):
    task = run.task
    source = [*task.tokenizer.encode([SENTENCE])[0], 2]
    width = task.config.decoding.beam_size
    (found,) = translate_ids(task.model, run.params, [source], task.config.decoding, n_best=width)
    assert [pieces for pieces, _ in translated.finished] == [task.tokenizer.pieces(one.ids) for one in found]
    np.testing.assert_allclose(
        [score for _, score in translated.finished], [one.score for one in found], rtol=1e-5
    )
    assert translated.predicted == translated.finished[0][0]
    assert translated.translation == task.tokenizer.decode(found[0].ids)
    assert translated.source == task.tokenizer.pieces(source)


@pytest.mark.long
def test_probabilities_are_those_of_scoring(run, translated):
    source, target = ([[*run.task.tokenizer.encode([SENTENCE])[0], 2]], [_ids(run, translated.predicted)])
    (scores,) = score_pairs(run.task.model, run.params, source, target, run.task.config.decoding)
    np.testing.assert_allclose(translated.probabilities, np.exp(scores), rtol=1e-4)
    for piece, probability, choices in zip(
        translated.predicted, translated.probabilities, translated.choices, strict=True
    ):
        listed = [p for _, p in choices]
        assert listed == sorted(listed, reverse=True)
        assert len(choices) == translation.CHOICES
        if probability > listed[-1]:
            np.testing.assert_allclose(dict(choices)[piece], probability, rtol=1e-5)


def test_attention_is_that_of_alignments(run, translated):
    source, target = ([[*run.task.tokenizer.encode([SENTENCE])[0], 2]], [_ids(run, translated.predicted)])
    (expected,) = attend_pairs(run.task.model, run.params, source, target, run.task.config.decoding)
    np.testing.assert_allclose(translated.weights["cross"][-1].mean(0), expected, rtol=1e-4, atol=1e-6)
    for part, weights in translated.weights.items():
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
        sides = [getattr(translated, side) for side in summaries.SIDES_OF[part]]
        assert weights.shape[2:] == tuple(map(len, sides))
    assert translated.read == ["<s>", *translated.predicted[:-1]]


@pytest.mark.long
@pytest.mark.parametrize("shared", [2, 1])
def test_vectors_of_shown_norms_sum_to_output(shared):
    """Over the keys they sum to what the attention module returns."""
    module = MultiHeadAttention(features=8, heads=2, use_bias=True, key_value_heads=shared)
    x = jax.random.normal(jax.random.key(0), (1, 5, 8))
    params = module.init(jax.random.key(1), x, x, mask=None, train=False)["params"]
    params["value"]["bias"] = jnp.arange(4.0 * shared).reshape(shared, 4)
    apply = functools.partial(module.apply, {"params": params}, x, x, mask=None, train=False)
    output, (weights,) = jax.device_get(read_attention("weights", apply))
    value = jnp.einsum("bmd,dhv->bmhv", x, params["value"]["kernel"]) + params["value"]["bias"]
    names = {"encoder.layers_0.self_attention.value": np.asarray(value)}
    tree = {"encoder": {"layers_0": {"self_attention": params}}}
    values, kernels = stack_values(names, tree, "encoder", (1, *weights.shape[1:]))
    added = np.einsum("hlm,mhv,hvd->lmd", weights[0], values[0], kernels[0])
    np.testing.assert_allclose(added.sum(1), output[0], atol=1e-5)
    joint = summaries.joint_value_norms(weights, values, kernels)
    np.testing.assert_allclose(joint[0], np.linalg.norm(added, axis=-1), atol=1e-5)


def test_every_part_of_a_transformer_has_norms(translated):
    for part, weights in translated.weights.items():
        assert translated.norms[part].shape == weights.shape
        assert translated.joint_norms[part].shape == (weights.shape[0], *weights.shape[2:])
        assert (translated.norms[part] > 0).sum() == (weights > 0).sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"encoder": {"layers_0": {"self_attention": {}}}},
        {"encoder": {"layers_0": {"self_attention": {"output": {"kernel": np.ones((3, 4, 8))}}}}},
    ],
)
def test_attention_of_other_modules_has_no_norms(params):
    values = {"encoder.layers_0.self_attention.value": np.ones((1, 5, 2, 4))}
    assert stack_values(values, params, "encoder", (1, 2, 5, 5)) is None
    assert stack_values({}, params, "encoder", (1, 2, 5, 5)) is None


@pytest.mark.long
def test_beam_steps_are_those_of_its_hypotheses():
    """Each extension's log-probability is its parent's and that of its token in the table."""
    table = random_table(3, 1)
    found, traced = trace(table, width=3, length=6)
    steps = trace_steps(traced)
    prefixes = [((), 0.0, 0)]  # tokens, log-probability, hash
    ended = []
    for extensions in steps:
        following = []
        for each in extensions:
            tokens, log, hashed = prefixes[each.parent]
            hashed = next_state(hashed, tokens[-1] if tokens else BOS)
            logits = table[0, hashed].astype(np.float64)
            log += logits[each.token] - np.logaddexp.reduce(logits)
            if each.score is None:
                np.testing.assert_allclose(each.log_probability, log, rtol=1e-4)
                following.append(((*tokens, each.token), log, hashed))
            else:
                assert each.token == EOS
                np.testing.assert_allclose(each.score, log / ((5 + len(tokens) + 1) / 6) ** 0.6, rtol=1e-4)
                ended.append(((*tokens, EOS), each.score))
        prefixes = following
    best = [tuple(ids[:length]) for ids, length in zip(found.tokens[0], found.lengths[0], strict=True)]
    assert set(best) <= {ids for ids, _ in ended}
    assert [each.token for step in steps for each in step if each.best] == list(best[0])


def trace(table, width, length):
    """Of beam search over a table of logits, as NumPy arrays."""
    options = {"beam_size": width, "length_penalty": 0.6, "batch_size": len(table), "reorder": reorder}
    limits = search.Limits(length, BOS, EOS)
    found = search.trace_beam_search(step, begin(table, width), limits, **options)
    return jax.tree.map(np.asarray, found)


def test_steps_end_with_the_search():
    tokens = np.array([[[[5, 0, 0]]], [[[5, 6, 0]]], [[[5, 6, 0]]]])
    scores = np.array([[[-1.0]], [[-np.inf]], [[-np.inf]]])
    finished = search.Hypotheses(
        np.array([[[[0, 0, 0]]], [[[5, 2, 0]]], [[[5, 2, 0]]]]),
        np.array([[[-np.inf]], [[-2.0]], [[-2.0]]]),
        np.array([[[0]], [[2]], [[2]]]),
    )
    steps = trace_steps(search.BeamTrace(tokens, scores, finished))
    assert steps == [[Extension(5, -1.0, None, 0, True)], [Extension(2, None, -2.0, 0, True)]]


@pytest.mark.long
def test_long_translations_are_truncated(run, caplog):
    decoding = dataclasses.replace(run.task.config.decoding, min_length=9)
    task = type(run.task)(dataclasses.replace(run.task.config, decoding=decoding), run.task.tokenizer)
    with caplog.at_level("WARNING", "tfm"):
        translated = examine(task, run.params, "red dog", max_tokens=6)
    assert "Drawing the first 6 of the" in caplog.text
    assert len(translated.read) == translated.weights["cross"].shape[2] == len(translated.choices) == 6
    assert len(translated.beam) <= 6 < len(translated.finished[0][0])


@pytest.mark.parametrize("sentence", ["", "  \n", "\u3000"])
def test_an_empty_sentence_is_refused(run, sentence):
    with pytest.raises(UserError, match="Expected a sentence to translate and draw, got an empty one"):
        examine(run.task, run.params, sentence)


@pytest.mark.long
@pytest.mark.parametrize("sentence", ["</script><b>", "🐕 läuft", "הכלב ישן", "\u200b", "a\u0301\u0000b"])
def test_any_text_is_translated(run, sentence):
    translated = examine(run.task, run.params, sentence)
    assert translated.source[-1] == "</s>"
    assert len(translated.predicted) == len(translated.probabilities) > 0


def test_weights_that_are_not_numbers_are_refused(run):
    broken = jax.tree.map(lambda x: x * jnp.nan, run.params)
    with pytest.raises(UserError, match=r"got NaN.*damaged"):
        examine(run.task, broken, SENTENCE)


@pytest.mark.long
def test_sentences_of_one_length_share_a_program(run, translated):
    with count_programs() as programs:
        examine(run.task, run.params, "blue cat runs")
    assert not programs


def _ids(run, pieces):
    tokenizer = run.task.tokenizer
    return list(map(tokenizer.pieces(range(len(tokenizer))).index, pieces))
