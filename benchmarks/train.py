"""Speed of the bare training step: python -m benchmarks.train --size=base --dtype=float32

Forward, backward and Adam on random tokens, label smoothing 0.1, dropout 0.1 everywhere. Prints one JSON
line: tokens/s count source and target, none of them padding; "utilisation" divides the model's matrix
products by the rate of a bare matrix product measured in the same process.
"""

import json
import resource

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import sizes
from tfm.decoding.protocol import shift_right
from tfm.losses import fused_linear_cross_entropy
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import LossOutput

FLAGS = flags.FLAGS
flags.DEFINE_enum("size", "small", list(sizes.SIZES), "Model and batch.")
flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16"), "Of the computation.")
flags.DEFINE_integer("rows", 0, "Rows of a batch; 0 takes the size's own.")
flags.DEFINE_integer("length", 0, "Tokens of a row's side; 0 takes the size's own.")
flags.DEFINE_integer("steps", 30, "Steps to time.", lower_bound=1)
flags.DEFINE_enum(
    "attention",
    "None",
    ("None", "auto", "xla", "cudnn", "blockwise"),
    "Implementation of attention. All except None have no dropout of its weights.",
)
flags.DEFINE_bool("remat", False, "Compute activations again instead of keeping them.")
flags.DEFINE_bool("scan", False, "Compile a stack's layers once.")
flags.DEFINE_integer("loss_chunk_size", 512, "Target positions whose logits are held at once.")


def main(_):
    attention = None if FLAGS.attention == "None" else FLAGS.attention
    fused = {"attention": attention} | ({"attention_dropout": 0.0} if attention else {})
    model = sizes.make_model(
        FLAGS.size, dtype=FLAGS.dtype, remat=FLAGS.remat, scan=FLAGS.scan, **sizes.DROPOUT | fused
    )
    rows, length = FLAGS.rows or sizes.SIZES[FLAGS.size][1], FLAGS.length or sizes.SIZES[FLAGS.size][2]
    training = TrainingConfig()
    optimizer = make_optimizer(training.optimizer, make_schedule(training, model.config.d_model))

    def loss(variables, batch, context):
        features, table = model.apply(
            variables,
            batch["inputs"],
            shift_right(batch["targets"]),
            train=True,
            rngs={"dropout": context.rng},
            method="features",
        )
        weights = jnp.ones(batch["targets"].shape)
        metrics = fused_linear_cross_entropy(
            features, table, batch["targets"], weights, 0.1, FLAGS.loss_chunk_size
        )
        return LossOutput({"loss": metrics.pop("loss")}, metrics)

    learners = [Learner(loss, optimizer)]
    token = jnp.ones((1, 1), jnp.int32)
    state = jax.jit(lambda key: TrainState.create(model.init(key, token, token, train=False), learners))(
        jax.random.key(0)
    )
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    step = jax.jit(make_train_step(learners, jax.random.key(1)), donate_argnums=0)
    batches = [
        jax.device_put({"inputs": inputs, "targets": targets})
        for inputs, targets in sizes.tokens(model, rows, length, 8)
    ]
    done = 0

    def call():
        nonlocal state, done
        state, metrics = step(state, batches[done % len(batches)])
        done += 1
        return metrics

    compile_seconds, seconds = sizes.timed(call, FLAGS.steps)
    rate = sizes.training_flops(model, rows, length) / seconds
    gemm = sizes.gemm_rate(FLAGS.dtype)
    loss_sum, count = call()["loss"]
    print(
        json.dumps(
            {
                "size": FLAGS.size,
                "dtype": model.config.dtype,
                "device": jax.devices()[0].device_kind,
                "batch": [rows, length],
                "attention": model.config.attention,
                "remat": model.config.remat,
                "scan": model.config.scan,
                "parameters": parameters,
                "tokens_per_second": round(2 * rows * length / seconds),
                "milliseconds": round(1000 * seconds, 2),
                "gflops": round(rate / 1e9, 1),
                "utilisation": round(rate / gemm, 3),
                "gemm_gflops": round(gemm / 1e9, 1),
                "first_call_seconds": round(compile_seconds, 2),
                "peak_memory_mb": peak_memory(),
                "loss": round(float(np.asarray(loss_sum) / np.asarray(count)), 4),
            }
        )
    )


def peak_memory():
    """MiB: of the device where it tells, otherwise of the process."""
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return round(statistics["peak_bytes_in_use"] / 2**20)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    app.run(main)
