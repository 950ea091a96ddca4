"""A program that imports and uses every part of tfm, for an environment without the extra `train`.

It imports nothing of the tests. Each function uses one part. The program prints their names.
"""

import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tfm
from tfm import attention, dropout, interpret, layers, losses, masks, models, positions, schedules, search
from tfm.blockwise_attention import blockwise_attention
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import generate_ids
from tfm.decoding.mbr import expected_utilities
from tfm.decoding.score import score_pairs
from tfm.decoding.translate import translate_ids
from tfm.errors import UserError
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig

VOCABULARY = 11
SMALL = {"d_model": 8, "d_ff": 16, "heads": 2}
SOURCES = jnp.array([[5, 6, 7, 2], [8, 9, 2, 0]])
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 2, 8)), jnp.float32)


def use_equations():
    mask = masks.causal_mask(jnp.arange(4), jnp.arange(4))[None]
    rotated = positions.rotary_encoding(X, jnp.arange(4))
    heads = attention.dot_product_attention(rotated, rotated, X, mask=mask)
    np.testing.assert_allclose(heads, blockwise_attention(rotated, rotated, X, mask=mask), atol=1e-5)
    assert positions.sinusoidal_encoding(jnp.arange(4), 8).shape == (4, 8)
    assert (dropout.dropout(jax.random.key(0), X, 0.5) == 0).any()


def use_losses_and_schedules():
    logits, labels = jnp.zeros((2, 3, 7)), jnp.ones((2, 3), jnp.int32)
    total, weight = losses.smoothed_cross_entropy(logits, labels, jnp.ones((2, 3)), smoothing=0.1)
    np.testing.assert_allclose(total / weight, np.log(7), rtol=1e-5)
    rate = schedules.inverse_sqrt(512, warmup_steps=4000)
    np.testing.assert_allclose(rate(4000), 512**-0.5 * 4000**-0.5, rtol=1e-3)
    optax.adam(rate).init({"x": X})


def use_layers():
    layer = layers.Layer(layers.MultiHeadAttention(features=8, heads=2), layers.FeedForward(8, 16))
    x = X[:, :, 0]
    output, _ = layer.init_with_output(jax.random.key(0), x, mask=None, train=False)
    assert output.shape == x.shape


def make_transformer():
    config = models.TransformerConfig(encoder_layers=1, decoder_layers=1, **SMALL)
    model = models.Transformer(config, VOCABULARY)
    return model, model.init(jax.random.key(0), SOURCES, SOURCES, train=False)["params"]


def use_models():
    model, params = make_transformer()
    assert model.apply({"params": params}, SOURCES, SOURCES, train=False).shape == (2, 4, VOCABULARY)
    for system in pkgutil.iter_modules(importlib.import_module("tfm.systems").__path__):
        names = {
            module.name
            for module in pkgutil.iter_modules(importlib.import_module(f"tfm.systems.{system.name}").__path__)
        }
        if "model" in names:
            assert importlib.import_module(f"tfm.systems.{system.name}.model").__doc__


def use_search():
    logits = jnp.log(jnp.array([0.01, 0.01, 0.08, 0.9]))

    def step(tokens, state, position):
        return jnp.broadcast_to(logits, (*tokens.shape, 4)), state

    limits = search.Limits(max_length=3, bos_id=1, eos_id=2)
    found = search.beam_search(step, {}, limits, batch_size=1, beam_size=2, length_penalty=0.0)
    greedy = search.greedy_search(step, {}, limits, batch_size=1)
    assert greedy.tokens[0, 0].tolist() == [3, 3, 2]
    assert found.scores[0, 0] >= greedy.scores[0, 0]


def use_decoding():
    model, params = make_transformer()
    sources = [[5, 6, 7, 2], [8, 2]]
    config = DecodingConfig(beam_size=2, max_extra_tokens=3)
    hypotheses = translate_ids(model, params, sources, config, n_best=2)
    assert [len(rows) for rows in hypotheses] == [2, 2]
    targets = [rows[0].ids for rows in hypotheses]
    scores = score_pairs(model, params, sources, targets, config)
    assert [len(row) for row in scores] == [len(ids) for ids in targets]
    language_model = DecoderLM(DecoderLMConfig(layers=1, **SMALL), VOCABULARY)
    variables = language_model.init(jax.random.key(0), SOURCES, train=False)
    (samples,) = generate_ids(language_model, variables["params"], [[5, 6]], GenerationConfig(max_tokens=3))
    assert samples


def use_interpretation():
    model, params = make_transformer()
    weights = "decoder.layers_0.cross_attention.weights"
    assert weights in interpret.list_points(model, SOURCES, SOURCES)
    edit = {weights: interpret.zero_head(0)}
    _, reads = interpret.run(model, params, SOURCES, SOURCES, read=weights, edit=edit)
    assert (reads[weights][:, 0] == 0).all()
    config = DecodingConfig(beam_size=2, max_extra_tokens=2)
    interpret.decode(model, params, SOURCES, config, read=weights, edit=edit)


def use_training_step():
    """An update with tfm's own step, as in chapter 7 of the guide."""
    from tfm.training.loss_calls import apply_model
    from tfm.training.step import Learner, TrainState, make_train_step
    from tfm.training.task import LossOutput

    model, params = make_transformer()

    def loss(variables, batch, context):
        logits, _ = apply_model(model, variables, batch, batch, context=context)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch)
        return LossOutput({"loss": (each.sum(), jnp.float32(each.size))})

    learners = [Learner(loss, optax.adam(1e-3))]
    state = TrainState.create({"params": params}, learners)
    state, metrics = jax.jit(make_train_step(learners, jax.random.key(1)))(state, SOURCES)
    assert int(state.step) == 1
    assert metrics["loss"][0] > 0


def ask_for_what_needs_the_extra():
    for name in ("Translator", "Generator", "Observer"):
        assert message_of(getattr, tfm, name).startswith(f"tfm.{name} needs the extra train")
    message = message_of(expected_utilities, ["a", "b"], "chrf")
    assert message.endswith("run pip install 'tfm-jax[train]'.")


def message_of(function, *arguments):
    """Returns the message of the UserError that a call raises, or "" if it raises none."""
    try:
        function(*arguments)
    except UserError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    for use in (
        use_equations,
        use_losses_and_schedules,
        use_layers,
        use_models,
        use_search,
        use_decoding,
        use_interpretation,
        use_training_step,
        ask_for_what_needs_the_extra,
    ):
        use()
        print(use.__name__)
