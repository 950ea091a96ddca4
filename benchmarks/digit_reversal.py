"""What attention is for: python -m benchmarks.digit_reversal --attention=additive

Trains a recurrent model to reverse strings of digits, sampled for each step, then decodes strings that it
has not seen by greedy search. With --attention=none the decoder gets nothing of the source but its initial
state, one vector for the whole string (Bahdanau et al. 2015, section 1). Prints one JSON line: "sequences" is
the fraction of strings that are reversed without a mistake.
"""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import shift_right
from tfm.decoding.translate import translate_ids
from tfm.losses import fused_linear_cross_entropy
from tfm.systems.rnn_seq2seq import model as rnn_seq2seq
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import LossOutput

FLAGS = flags.FLAGS
flags.DEFINE_enum("attention", "additive", ("additive", "general", "none"), "The model's score, or none.")
flags.DEFINE_integer("length", 20, "Digits of a string.", lower_bound=1)
flags.DEFINE_integer("features", 128, "Of each state.", lower_bound=1)
flags.DEFINE_integer("rows", 128, "Strings of a batch.", lower_bound=1)
flags.DEFINE_integer("steps", 500, "Of training.", lower_bound=1)
flags.DEFINE_integer("tests", 1000, "Strings to decode.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of weights and strings.")
FIRST_DIGIT = 3  # after padding, BOS and EOS


def draw_strings(rng, rows, length):
    """Digits as ids, int32 [rows, length + 1], EOS at the end, and the same reversed."""
    digits = rng.integers(FIRST_DIGIT, FIRST_DIGIT + 10, (rows, length))
    end = np.full((rows, 1), EOS_ID)
    sides = (np.concatenate([side, end], axis=1) for side in (digits, digits[:, ::-1]))
    return tuple(side.astype(np.int32) for side in sides)


def make_model(attention, features):
    """A GRU in both directions, as in the paper but for its size and its random initialization."""
    return rnn_seq2seq.Model(
        rnn_seq2seq.Config(
            embedding_features=32,
            hidden_features=features,
            attention=attention,
            attention_features=features,
            output_features=features,
            initialization="glorot",
        ),
        vocabulary_size=FIRST_DIGIT + 10,
    )


def train(model, rows, length, steps, seed):
    """The parameters after `steps` updates, and the mean loss of the last of them."""
    training = TrainingConfig(
        steps=steps, schedule="linear_decay", warmup_steps=100, peak_learning_rate=0.004, clip_norm=1.0
    )

    def loss(variables, batch, context):
        targets = batch["targets"]
        inputs = batch["inputs"], shift_right(targets)
        features, table = model.apply(variables, *inputs, train=True, method="features")
        metrics = fused_linear_cross_entropy(features, table, targets, jnp.ones(targets.shape), 0.0, 4096)
        return LossOutput({"loss": metrics.pop("loss")}, metrics)

    token = jnp.ones((1, 1), jnp.int32)
    variables = model.init(jax.random.key(seed), token, token, train=False)
    optimizer = make_optimizer(training.optimizer, make_schedule(training, None), training.clip_norm)
    learners = [Learner(loss, optimizer)]
    step = jax.jit(make_train_step(learners, jax.random.key(seed)), donate_argnums=0)
    state, rng = TrainState.create(variables, learners), np.random.default_rng(seed)
    for number in range(1, steps + 1):
        inputs, targets = draw_strings(rng, rows, length)
        state, metrics = step(state, {"inputs": inputs, "targets": targets})
        if number % 100 == 0:
            total, count = metrics["loss"]
            print(f"step {number}: loss {total / count:.4f}", flush=True)
    total, count = metrics["loss"]
    return state.params, float(total / count)


def measure(model, params, tests, length, seed):
    """(fraction of strings, fraction of digits) that greedy search gets right."""
    inputs, targets = draw_strings(np.random.default_rng((seed, 1)), tests, length)
    config = DecodingConfig(beam_size=1, max_extra_tokens=5, batch_size=250)
    found = [hypotheses[0].ids for hypotheses in translate_ids(model, params, inputs.tolist(), config)]
    pairs = list(zip(found, targets.tolist(), strict=True))
    exact = sum(ids == target for ids, target in pairs) / len(pairs)
    digits = sum(a == b for ids, target in pairs for a, b in zip(ids, target[:length], strict=False))
    return exact, digits / (length * len(pairs))


def main(_):
    model = make_model(FLAGS.attention, FLAGS.features)
    began, began_cpu = time.monotonic(), time.process_time()
    params, loss = train(model, FLAGS.rows, FLAGS.length, FLAGS.steps, FLAGS.seed)
    seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
    sequences, digits = measure(model, params, FLAGS.tests, FLAGS.length, FLAGS.seed)
    print(
        json.dumps(
            {
                "attention": FLAGS.attention,
                "length": FLAGS.length,
                "seed": FLAGS.seed,
                "steps": FLAGS.steps,
                "parameters": sum(x.size for x in jax.tree.leaves(params)),
                "device": jax.devices()[0].device_kind,
                "training_seconds": round(seconds, 1),
                "training_cpu_seconds": round(cpu, 1),
                "loss": round(loss, 4),
                "sequences": round(sequences, 4),
                "digits": round(digits, 4),
            }
        )
    )


if __name__ == "__main__":
    app.run(main)
