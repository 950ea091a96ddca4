"""word2vec on the English sentences of the built-in language. Runs without a download.

    python train.py --config=configs/word2vec.py --workdir=runs/word2vec
    python eval.py --workdir=runs/word2vec

Each evaluation draws a map of the words into runs/word2vec/samples. docs/results.md has the scores.
Deviations from the paper are 50 features instead of 300, a subsampling of 1e-3 for a small corpus, batches of
pairs from random sentences, and Adam in place of SGD.
"""

from tfm.config import to_config_dict
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import SkipGramsConfig
from tfm.systems.word2vec.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=Word2VecConfig(features=50),
            data=SkipGramsConfig(subsampling=1e-3),
            training=TrainingConfig(
                steps=3000,
                schedule="linear_decay",
                warmup_steps=50,
                peak_learning_rate=0.025,
                log_every=250,
                eval_every=1500,
                checkpoint_every=1500,
                keep=2,
            ),
        )
    )
