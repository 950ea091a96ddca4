"""Speed and memory of the input, on a synthetic corpus: python -m benchmarks.input --folder=FOLDER

Writes train.en and train.de (made-up words, their frequencies after Zipf) of about the tokens asked for, if
they are not there already, and other.en and other.de, a ninth of it. Then a vocabulary of 8,000 pieces,
tokenising on all cores, and batches of 25,000 tokens a side on their way to the device as in training, but
without a model: those of train alone, and those of both corpora, tagged and mixed half and half, in two
segmentations by BPE dropout. Prints one JSON line for each of these and each way of batching.
"""

import dataclasses
import json
import os
import time

import jax
import numpy as np
from absl import app, flags

from tfm.data.batches.pairs import open_train_batches
from tfm.data.batches.schedule import prefetch
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.tasks.translation.data import count_tokens
from tfm.tasks.translation.task import sample_evenly

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", None, "Where the corpus is, or is to be.", required=True)
flags.DEFINE_integer("tokens", 100_000_000, "About as many, both sides together.", lower_bound=10_000)
flags.DEFINE_integer("batches", 300, "Batches to time, beside ten to warm up.", lower_bound=1)

WORDS = 30_000
WORDS_OF_A_SENTENCE = (4, 30)
TOKENS_OF_A_WORD = 1.7  # about, with 8,000 pieces
TAGS = ("<train>", "<other>")
BLOCK = 100_000  # pairs written at a time
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "en", "ar")]


def main():
    pairs = round(FLAGS.tokens / 2 / TOKENS_OF_A_WORD / np.mean(WORDS_OF_A_SENTENCE))
    for split, count in (("train", pairs), ("other", pairs // 9)):
        if not os.path.exists(os.path.join(FLAGS.folder, f"{split}.de")):
            write_corpus(FLAGS.folder, split, count)
    plain = PairsConfig(
        kind="text",
        directory=FLAGS.folder,
        cache_dir=os.path.join(FLAGS.folder, "cache"),
        vocabulary_size=8000,
    )
    path = os.path.join(FLAGS.folder, "vocabulary.model")
    if not os.path.exists(path):
        texts = sample_evenly(open_pairs(plain, "train"), BLOCK)
        learn_word_pieces(texts, plain.vocabulary_size, path, symbols=TAGS)
    tokenizer = load_word_pieces(path)
    mixed = dataclasses.replace(
        plain,
        train="train,other",
        tags=",".join(TAGS),
        mixing="1,1",
        subword_dropout=0.1,
        subword_samples=2,
    )
    for name, config in (("one corpus", plain), ("tags, mixture and subword sampling", mixed)):
        for batching in ("buckets", "packed"):
            feed(name, dataclasses.replace(config, batching=batching), tokenizer)


def feed(name, config, tokenizer):
    """Times batches on their way to the device, and prints what it finds."""
    began = time.perf_counter()
    batches = open_train_batches(config, 0, tokenizer)[0]
    feed = prefetch(batches, 0)
    for _ in range(10):
        jax.block_until_ready(jax.device_put(next(feed)))
    started = time.perf_counter() - began
    began, tokens = time.perf_counter(), 0
    for _ in range(FLAGS.batches):
        batch = next(feed)
        tokens += count_tokens(batch)
        jax.block_until_ready(jax.device_put(batch))
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "data": name,
                "batching": config.batching,
                "pairs": batches.pairs,
                "first_batches_after_seconds": round(started, 2),
                "tokens_per_second": round(tokens / seconds),
                "padding_fraction": round(batches.padding_fraction, 3),
            }
            | memory()
        ),
        flush=True,
    )


def memory():
    """MiB of this process: the peak with the pages of mapped files in it, and what it holds itself now."""
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {
        name: round(int(fields[key].split()[0]) / 1024)
        for name, key in (("peak_resident_mb", "VmHWM"), ("own_memory_mb", "RssAnon"))
    }


def write_corpus(folder, split, pairs):
    """Writes `pairs` lines of made-up words into each of the split's two files."""
    os.makedirs(folder, exist_ok=True)
    for language, seed in (("en", 1), ("de", 2)):
        rng = np.random.default_rng((seed, pairs))
        words = lexicon(seed)
        frequency = 1 / np.arange(10, WORDS + 10)
        cumulative = np.cumsum(frequency / frequency.sum())
        temporary = os.path.join(folder, f"{split}.{language}.part")
        with open(temporary, "w", encoding="utf-8") as file:
            for first in range(0, pairs, BLOCK):
                lengths = rng.integers(*WORDS_OF_A_SENTENCE, min(BLOCK, pairs - first), endpoint=True)
                drawn = words[np.searchsorted(cumulative, rng.random(lengths.sum()))]
                sentences = np.split(drawn, np.cumsum(lengths)[:-1])
                file.writelines(" ".join(sentence) + "\n" for sentence in sentences)
        os.replace(temporary, os.path.join(folder, f"{split}.{language}"))


def lexicon(seed):
    """WORDS made-up words of two to five syllables, as an array of texts."""
    rng = np.random.default_rng(seed)
    words = {}
    while len(words) < WORDS:
        words["".join(rng.choice(SYLLABLES, rng.integers(2, 5, endpoint=True)))] = None
    return np.array(list(words), object)


if __name__ == "__main__":
    app.run(lambda _: main())
