"""Speed of decoding: python -m benchmarks.decode --size=base --batch=8 --beam=4

The model has random parameters. Sources have 32 tokens, and EOS is forbidden until an output has exactly 32
tokens. A beam of 1 is greedy search. The time includes the encoder, but not the compilation. The program
prints one JSON line. With --naive, it works as decoders often do: it repeats the encoder output for each
hypothesis and copies the caches when the beam changes its order.
"""

import concurrent.futures
import functools
import json

import jax
from absl import app, flags

from benchmarks import sizes
from tfm import search
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import search_parameters
from tfm.decoding.translate import search_batch

FLAGS = flags.FLAGS
flags.DEFINE_enum("size", "base", list(sizes.SIZES), "Model.")
flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16"), "Dtype of parameters and computation.")
flags.DEFINE_integer("batch", 8, "Sentences in a batch.", lower_bound=1)
flags.DEFINE_integer("beam", 4, "Beam size.", lower_bound=1)
flags.DEFINE_integer("length", 32, "Tokens of each source and of each output.", lower_bound=2)
flags.DEFINE_bool("naive", False, "Repeats the encoder output and copies the caches.")
flags.DEFINE_integer(
    "at_once", 1, "Number of batches to decode at the same time, each in a thread.", lower_bound=1
)
flags.DEFINE_integer("calls", 5, "Number of timed calls. Each decodes --at_once batches.", lower_bound=1)


def make_call(size, dtype, batch, beam, length, naive=False):
    """Returns a function that decodes the next of eight batches."""
    model = sizes.make_model(size, dtype=dtype)
    config = DecodingConfig(beam_size=beam, min_length=length, max_extra_tokens=0)
    token = jax.numpy.ones((1, 1), jax.numpy.int32)
    params = jax.jit(lambda key: model.init(key, token, token, train=False)["params"])(jax.random.key(0))
    members = (search_parameters(params, dtype),)
    inputs = [jax.device_put(x) for x, _ in sizes.tokens(model, batch, length, 8)]
    find = naive_search if naive else search_batch
    done = 0

    def call():
        nonlocal done
        done += 1
        return find(model, members, inputs[done % len(inputs)], config)

    return call


@functools.partial(jax.jit, static_argnums=(0, 3))
def naive_search(model, members, inputs, config):
    """Decodes like `search_batch` of `tfm.decoding.translate`, but copies caches to reorder the beam."""
    (batch, length), width = inputs.shape, config.beam_size
    apply = functools.partial(model.apply, {"params": members[0]})

    def split(tree):
        return jax.tree.map(lambda x: x.reshape(batch, width, *x.shape[1:]), tree)

    def step(tokens, cache, position):
        rows = jax.tree.map(lambda x: x.reshape(batch * width, *x.shape[2:]), (tokens[..., None], cache))
        logits, cache = apply(*rows, position, method="decode_step")
        return logits.reshape(batch, width, -1), split(cache)

    tiled = jax.numpy.repeat(inputs, width, axis=0)
    cache = apply(tiled, width=1, max_length=length, method="init_cache")
    constraints = search.Constraints(min_length=config.min_length, forbidden=(PAD_ID, BOS_ID))
    return search.beam_search(
        step,
        split(cache),
        search.Limits(length, BOS_ID, EOS_ID, constraints),
        batch_size=batch,
        beam_size=width,
        length_penalty=config.length_penalty,
        n_best=1,
    )


def decode_at_once(call, pool, count):
    """Decodes `count` batches at the same time, each in a thread."""
    return list(pool.map(lambda _: jax.block_until_ready(call()), range(count)))


def main(_):
    call = make_call(FLAGS.size, FLAGS.dtype, FLAGS.batch, FLAGS.beam, FLAGS.length, FLAGS.naive)
    with concurrent.futures.ThreadPoolExecutor(FLAGS.at_once) as pool:
        first, seconds = sizes.timed(lambda: decode_at_once(call, pool, FLAGS.at_once), FLAGS.calls)
    seconds /= FLAGS.at_once
    assert (call().lengths == FLAGS.length).all()
    print(
        json.dumps(
            {
                "size": FLAGS.size,
                "dtype": FLAGS.dtype,
                "device": jax.devices()[0].device_kind,
                "batch": FLAGS.batch,
                "beam": FLAGS.beam,
                "at_once": FLAGS.at_once,
                "naive": FLAGS.naive,
                "sentences_per_second": round(FLAGS.batch / seconds, 2),
                "tokens_per_second": round(FLAGS.batch * FLAGS.length / seconds, 1),
                "first_call_seconds": round(first, 2),
            }
        )
    )


if __name__ == "__main__":
    app.run(main)
