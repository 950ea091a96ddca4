"""The built-in English-German language: a first complete run on any machine, without a download.

    python train.py --config=configs/quickstart.py --workdir=runs/quickstart
    python eval.py --workdir=runs/quickstart
    tfm visualize --workdir=runs/quickstart

`make quickstart` does all three. Hardware and expected result: see docs/results.md.

Two deviations from the paper are for speed: 2 + 2 layers of 128 features, and a learning rate that falls
linearly to 0 instead of equation 3. One is for accuracy: rotary positions instead of sinusoids.
benchmarks/notes/quickstart.md compares the two.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=2,
                decoder_layers=2,
                d_model=128,
                d_ff=512,
                heads=4,
                dropout=0.0,
                positions="rotary",
            ),
            data=PairsConfig(
                kind="builtin",
                vocabulary_size=4000,
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=1000,
                schedule="linear_decay",
                warmup_steps=250,
                log_every=50,
                eval_every=250,
                checkpoint_every=250,
                keep=3,
            ),
            validation_sentences=200,
        )
    )
