"""WMT14 English-German: the paper's recipe and later ones for the same task, each with its published score.

    python train.py --config=configs/wmt14.py:paper_2017 --workdir=runs/paper_2017
    python eval.py --workdir=runs/paper_2017 --average=5

Variants: paper_2017, paper_2017_big, t2t_v2, large_batch. Each lists all its differences from the paper's
base model, which is the config without a variant: the defaults of `tfm.tasks.translation.Config`. Hardware,
hours and all commands: see docs/wmt14.md. We have not measured the scores of these variants.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.sweep import Variant
from tfm.tasks.translation.task import Config

BIG = {"model.d_model": 1024, "model.d_ff": 4096, "model.heads": 16, "model.dropout": 0.3}
TABLE_2 = "BLEU, Moses, hyphens split"  # the metric of the paper's Table 2


def get_config():
    return to_config_dict(Config(data=PairsConfig(kind="tfds", name="wmt14_translate/de-en")))


def get_variants():
    # Vaswani et al. 2017, Table 2: the mean of the last 5 checkpoints.
    yield Variant("paper_2017", {}, {TABLE_2: 27.3})

    # Vaswani et al. 2017, Table 2, big: the mean of the last 20 checkpoints. They are 600 steps apart (10
    # minutes on 8 P100).
    steps = {"training.steps": 300_000, "training.checkpoint_every": 600, "training.eval_every": 3000}
    yield Variant("paper_2017_big", BIG | steps | {"training.keep": 22}, {TABLE_2: 28.4})

    # tensor2tensor, transformer_base_v3: norms first, dropout in attention and feed-forward networks,
    # concatenated sines and cosines, twice the learning rate after twice the warm-up, 8 x 4,096 tokens.
    overrides = {
        "model.norm_order": "pre",
        "model.attention_dropout": 0.1,
        "model.feed_forward_dropout": 0.1,
        "model.positions": "concatenated",
        "training.warmup_steps": 8000,
        "training.learning_rate_scale": 2.0,
        "training.optimizer.b2": 0.997,
        "training.steps": 300_000,
        "data.batch_tokens": 32_768,
        "data.vocabulary_size": 32_000,
    }
    yield Variant("t2t_v2", overrides, {TABLE_2: 28.0})

    # Ott et al. 2018, big: batches of about 400,000 tokens, a peak learning rate of 0.001, half precision,
    # the mean of the last 10 checkpoints. We chose the number of steps.
    overrides = BIG | {
        "model.dtype": "bfloat16",
        "training.peak_learning_rate": 0.001,
        "training.steps": 30_000,
        "training.gradient_accumulation_steps": 16,
        "training.checkpoint_every": 600,
        "training.eval_every": 600,
        "training.keep": 12,
        "data.batch_tokens": 400_000,
        "data.vocabulary_size": 32_000,
    }
    yield Variant("large_batch", overrides, {TABLE_2: 29.3, "BLEU": 28.6})
