"""A small treebank in bracketed files and the config of a tiny parsing run."""

from tests.support.tiny import MODEL
from tfm.data.config import PairsConfig
from tfm.datasets.toy_language import read_trees
from tfm.decoding.config import DecodingConfig
from tfm.systems.parsing.task import Config
from tfm.systems.parsing.treebank import TREEBANK
from tfm.training.config import TrainingConfig

SIZES = {"train": 60, "validation": 6, "test": 5}


def write_treebank(folder):
    """Writes the first trees of the built-in treebank."""
    for split, size in SIZES.items():
        lines = read_trees(split)[:size]
        (folder / f"{split}.mrg").write_text("\n".join(lines), encoding="utf-8")


def make_parsing_config(folder, **training):
    """Returns the config of a run on the treebank in `folder`."""
    return Config(
        model=MODEL,
        data=PairsConfig(
            kind=TREEBANK,
            directory=str(folder),
            source_language="words",
            target_language="trees",
            vocabulary_size=400,
            batching="packed",
            batch_tokens=256,
            row_length=128,
            max_length=128,
            cache_dir=str(folder / "cache"),
        ),
        decoding=DecodingConfig(beam_size=2, max_extra_tokens=8),
        training=TrainingConfig(steps=4, warmup_steps=2, eval_every=2, checkpoint_every=2, **training),
        validation_sentences=2,
    )
