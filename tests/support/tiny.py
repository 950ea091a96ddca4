"""A tiny corpus, the config of a tiny translation run, and functions that train and read runs."""

import jax
import numpy as np

from tests.support.programs import initialize
from tfm import tasks
from tfm.config import save, to_config_dict
from tfm.data.config import PairsConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig
from tfm.training.run_log import read_metrics
from tfm.training.setup import has_checkpoint
from tfm.workdir import runs
from tfm.workdir.train import train

WORDS = ("red", "blue", "green", "small", "big", "dog", "cat", "bird", "runs", "sleeps")
TRANSLATED = ("rot", "blau", "gruen", "klein", "gross", "hund", "katze", "vogel", "rennt", "schlaeft")
MODEL = TransformerConfig(encoder_layers=2, decoder_layers=3, d_model=32, d_ff=40, heads=4, dropout=0.1)


def write_corpus(folder, sizes=(("train", 200), ("val", 16), ("test", 20))):
    """Writes sentences of random words and their word-by-word translations."""
    rng = np.random.default_rng(0)
    for split, size in sizes:
        lines = [rng.integers(0, len(WORDS), rng.integers(2, 7)) for _ in range(size)]
        for ending, words in (("en", WORDS), ("de", TRANSLATED)):
            text = "".join(" ".join(words[i] for i in line) + "\n" for line in lines)
            (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")


def make_config(folder, **training):
    """Returns the config of a run on the corpus in `folder`."""
    return Config(
        model=MODEL,
        data=PairsConfig(
            kind="text",
            directory=str(folder),
            validation="val",
            vocabulary_size=330,
            batching="packed",
            batch_tokens=256,
            row_length=36,
            max_length=34,
            cache_dir=str(folder / "cache"),
        ),
        training=TrainingConfig(
            **{
                "steps": 6,
                "warmup_steps": 3,
                "log_every": 4,
                "eval_every": 3,
                "checkpoint_every": 2,
                "keep": 9,
            }
            | training
        ),
        validation_sentences=4,
        validation_samples=0,  # their pictures take longer than the run
    )


def train_run(config, workdir):
    """Trains in `workdir` and returns the rows of its metrics."""
    workdir.mkdir(exist_ok=True)
    if not has_checkpoint(str(workdir)):  # otherwise, the start itself writes the config, as for the command
        save(config, runs.config_path(str(workdir)))
    train(tasks.find(config.task).create(config, str(workdir)), config.training, str(workdir))
    return read_metrics(str(workdir))


def losses(workdir):
    """Returns (step, loss) of training and of validation."""
    rows = read_metrics(str(workdir))
    return [(row["step"], row.get("train/loss", row.get("validation/nll"))) for row in rows]


def randomize_weights(run):
    """Returns the run with random parameters and sharper logits.

    A model of six steps would end every sentence at once, and so would the parameters of some seeds.
    """
    params = initialize(run.task, seed=1)
    sharper = {**params, "embedding": jax.tree.map(lambda x: 4 * x, params["embedding"])}
    return run._replace(variables={"params": sharper})


def write_config_file(folder, config):
    """Writes a Python config file that returns `config`. Returns the path of the file."""
    path = folder / "tiny.py"
    path.write_text(
        "import json\n"
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        f"    return ConfigDict(json.loads({to_config_dict(config).to_json()!r})).lock()\n",
        encoding="utf-8",
    )
    return path


def ids(cache, side, pair):
    """Returns the tokens of one sentence as a list."""
    return cache.tokens(side, np.array([pair]))[0].tolist()
