"""The work of `benchmarks.decode` by CTranslate2: python -m benchmarks.decode_peers --batch=8 --beam=4

The Python that runs this script needs torch, transformers and ctranslate2, but no JAX. The script converts a
MarianMT model with random weights, then decodes sentences of 32 source tokens until each output has exactly
32 tokens. It prints one JSON line with the speeds that `benchmarks.decode` prints. --workers=2 decodes two
halves of a batch at the same time and divides the threads between them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import ctranslate2
import numpy as np
import torch
import transformers
from ctranslate2.converters.transformers import MarianMTLoader

from benchmarks.peers import FIRST_WORD, LENGTH, SIZES

LENGTH_PENALTY = 0.6  # as in tfm.decoding
END, UNKNOWN = "</s>", "<unk>"


def convert(size: str, folder: str) -> None:
    """Writes a MarianMT model of a size with random weights as a model of CTranslate2."""
    layers, features, heads, inner, vocabulary, _ = SIZES[size]
    config = transformers.MarianConfig(
        vocab_size=vocabulary + 1,  # the conversion removes the last id, the padding
        d_model=features,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        init_std=features**-0.5,
        pad_token_id=vocabulary,
        eos_token_id=0,
        decoder_start_token_id=vocabulary,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    loader = MarianMTLoader()
    with torch.no_grad():
        spec = loader.get_model_spec(transformers.MarianMTModel(config).eval())
    loader.set_vocabulary(spec, [END, UNKNOWN, *(f"t{i}" for i in range(2, vocabulary))])
    spec.config.eos_token = spec.config.bos_token = spec.config.decoder_start_token = END
    spec.config.unk_token = UNKNOWN
    spec.validate()
    spec.optimize()
    spec.save(folder)


def make_call(
    arguments: argparse.Namespace, folder: str
) -> Callable[[int], list[ctranslate2.TranslationResult]]:
    """Returns a function that decodes one of eight batches, in turn."""
    translator = ctranslate2.Translator(
        folder,
        device="cpu",
        compute_type=arguments.dtype,
        inter_threads=arguments.workers,
        intra_threads=max(1, arguments.threads // arguments.workers),
    )
    words = np.random.default_rng(0).integers(
        FIRST_WORD, SIZES[arguments.size][4], (8, arguments.batch, LENGTH - 1)
    )
    batches = [[[*(f"t{i}" for i in row), END] for row in batch] for batch in words]

    def call(turn: int) -> list[ctranslate2.TranslationResult]:
        return translator.translate_batch(
            batches[turn % len(batches)],
            beam_size=arguments.beam,
            length_penalty=LENGTH_PENALTY,
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
            max_batch_size=-(-arguments.batch // arguments.workers),
        )

    return call


def main() -> None:
    """Measures the median time of a batch and prints it as one JSON line."""
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        convert(arguments.size, folder)
        call = make_call(arguments, folder)
        lengths = {len(result.hypotheses[0]) for result in call(0)}
        if lengths != {LENGTH}:
            raise SystemExit(f"Expected outputs of {LENGTH} tokens, got {sorted(lengths)}.")
        seconds = []
        for turn in range(1, arguments.calls + 1):
            began = time.perf_counter()
            call(turn)
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    settings = {name: getattr(arguments, name) for name in ("size", "dtype", "batch", "beam", "workers")}
    speeds = {
        "sentences_per_second": round(arguments.batch / median, 2),
        "tokens_per_second": round(arguments.batch * LENGTH / median, 1),
    }
    print(json.dumps({"peer": f"ctranslate2 {ctranslate2.__version__}", **settings, **speeds}))


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--dtype", choices=("float32", "int8"), default="float32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
