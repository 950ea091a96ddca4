"""Documents of a few words and the config of a tiny language model."""

import dataclasses

import numpy as np

from tfm.data.config import DocumentsConfig
from tfm.decoding.config import GenerationConfig
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.tasks.language_modeling import Config
from tfm.training.config import TrainingConfig

WORDS = ("red", "blue", "green", "small", "dog", "cat", "runs", "sleeps")
SENTENCES = tuple(f"A {word}." for word in WORDS)
MODEL = DecoderLMConfig(
    layers=3, d_model=20, d_ff=24, heads=2, dropout=0.1, attention_dropout=0.0, max_positions=32
)


def write_documents(folder, sizes=(("train", 60), ("validation", 7), ("test", 8)), words=WORDS):
    """Writes documents of random words, or of random sentences, one document per line."""
    rng = np.random.default_rng(0)
    for split, size in sizes:
        lines = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(size)]
        (folder / split).write_text("\n".join(lines), encoding="utf-8")


def make_lm_config(folder, training=None, model=None, data=None, **fields):
    """Returns the config of a run on the documents in `folder`."""
    return Config(
        model=dataclasses.replace(MODEL, **(model or {})),
        data=DocumentsConfig(
            **{
                "documents": "line",
                "directory": str(folder),
                "row_length": 16,
                "batch_tokens": 64,
                "cache_dir": str(folder / "cache"),
            }
            | (data or {})
        ),
        training=TrainingConfig(
            **{
                "steps": 4,
                "warmup_steps": 2,
                "log_every": 3,
                "eval_every": 2,
                "checkpoint_every": 2,
                "keep": 9,
            }
            | (training or {})
        ),
        **{"decoding": GenerationConfig(max_tokens=6), "stride": 8} | fields,
    )
