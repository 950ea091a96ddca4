"""Table 3 of the paper with models an eighth as wide and half as deep, on the built-in language.

    tfm sweep configs/table3_small.py --workdir=runs/table3_small --jobs=2
    python train.py --config=configs/table3_small.py:C-d1024 --workdir=runs/C-d1024

Hardware, hours and result: see docs/results.md and benchmarks/notes/table3_small.md.

Every width of the paper (d_model, d_ff, features of keys and values) is divided by 8, and every number of
layers by 2. Heads, rates and the form of the schedule are as in the paper. Base trains 600 steps of 1,024
tokens on each side, and big 1,800 steps. The learning rate is equation 3 with 200 steps of warm-up, times
0.45.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.models import TransformerConfig
from tfm.sweep import table3
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

WIDTH_DIVISOR, DEPTH_DIVISOR, STEPS = 8, 2, 600


def get_config():
    depth = 6 // DEPTH_DIVISOR
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=depth,
                decoder_layers=depth,
                d_model=512 // WIDTH_DIVISOR,
                d_ff=2048 // WIDTH_DIVISOR,
                scan=True,  # compiles a layer only once, because compilation takes half of a run of a minute
            ),
            data=PairsConfig(
                kind="builtin",
                vocabulary_size=2000,
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=32,
                max_length=32,
                batch_tokens=1024,
            ),
            training=TrainingConfig(
                steps=STEPS,
                warmup_steps=200,
                learning_rate_scale=0.45,
                log_every=50,
                eval_every=STEPS,
                checkpoint_every=STEPS // 2,
                keep=1,
            ),
            validation_sentences=0,
        )
    )


def get_variants():
    return table3(width_divisor=WIDTH_DIVISOR, depth_divisor=DEPTH_DIVISOR, steps=STEPS)
