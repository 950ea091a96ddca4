"""What several tests share: a corpus that a tiny model learns in seconds, and its config."""

import dataclasses

import numpy as np

from tfm.config import to_config_dict
from tfm.data.config import DataConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation import Config
from tfm.training.config import TrainingConfig

WORDS = ("red", "blue", "green", "small", "big", "dog", "cat", "bird", "runs", "sleeps")
TRANSLATED = ("rot", "blau", "gruen", "klein", "gross", "hund", "katze", "vogel", "rennt", "schlaeft")
MODEL = TransformerConfig(
    vocabulary_size=50, encoder_layers=2, decoder_layers=2, d_model=32, d_ff=64, heads=4, dropout=0.1
)


def write_corpus(folder, sizes=(("train", 200), ("val", 20), ("test", 20))):
    """Sentences of random words, translated word by word."""
    rng = np.random.default_rng(0)
    for split, size in sizes:
        lines = [rng.integers(0, len(WORDS), rng.integers(2, 7)) for _ in range(size)]
        for ending, words in (("en", WORDS), ("de", TRANSLATED)):
            text = "".join(" ".join(words[i] for i in line) + "\n" for line in lines)
            (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")


def make_config(folder, **training):
    """A run on the corpus in `folder`, its cache beside it."""
    config = Config(
        model=MODEL,
        data=DataConfig(
            kind="text",
            directory=str(folder),
            validation="val",
            vocabulary_size=330,
            batching="packed",
            batch_tokens=256,
            row_length=32,
            max_length=32,
            cache_dir=str(folder / "cache"),
        ),
        training=TrainingConfig(
            **{"steps": 6, "warmup_steps": 3, "log_every": 2, "eval_every": 3, "checkpoint_every": 2, "keep": 9}
            | training
        ),
        validation_sentences=4,
    )
    return dataclasses.replace(config)


def write_config_file(folder, config):
    """A config file that returns `config`."""
    path = folder / "tiny.py"
    path.write_text(
        "import json\n"
        "from ml_collections import ConfigDict\n"
        f"def get_config():\n    return ConfigDict(json.loads({to_config_dict(config).to_json()!r})).lock()\n",
        encoding="utf-8",
    )
    return path
