"""Table 3 of the paper with models an eighth as wide, on the built-in English-German language.

    tfm sweep configs/table3_small.py --workdir=runs/table3_small --at_once=2
    python train.py --config=configs/table3_small.py:C-d1024 --workdir=runs/C-d1024

Hardware, hours and result: see docs/results.md.

Every width (D, F, features of keys and values) is the paper's divided by 8; layers, heads and rates are the
paper's.
"""

from tfm.config import to_config_dict
from tfm.data.config import DataConfig
from tfm.models import TransformerConfig
from tfm.sweep import table3
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

DIVISOR = 8
STEPS = 600


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(d_model=512 // DIVISOR, d_ff=2048 // DIVISOR, scan=True),
            data=DataConfig(
                kind="builtin",
                vocabulary_size=2000,
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=STEPS,
                warmup_steps=200,
                log_every=50,
                eval_every=STEPS,
                checkpoint_every=STEPS // 2,
                keep=1,
            ),
            validation_sentences=0,
        )
    )


def get_variants():
    return table3(divisor=DIVISOR, steps=STEPS)
