"""A Universal Transformer with adaptive computation time on the built-in English-German language.

    python train.py --config=configs/quickstart_universal.py --workdir=runs/universal
    python eval.py --workdir=runs/universal
    python -m benchmarks.ponder_steps --workdir=runs/universal --figure=steps.png

The data, the batches and the learning rate are the same as in configs/quickstart.py. One layer of each stack
runs at most four times. Scores: docs/results.md.

Deviations from Dehghani et al. 2018: 128 features, no dropout, rotary positions in addition to sinusoids, a
fifth of the training sentences joined to longer texts, and a learning rate that falls linearly to 0.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=UniversalConfig(
                encoder_layers=4,
                decoder_layers=4,
                d_model=128,
                d_ff=512,
                heads=4,
                dropout=0.0,
                positions="interleaved_and_rotary",
                halting=True,
            ),
            data=PairsConfig(
                kind="builtin",
                joined_share=0.2,
                vocabulary_size=4000,
                normalization="nmt_nfkc_quotes",
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=128,
                batch_tokens=512,
            ),
            training=TrainingConfig(
                steps=2600,
                schedule="linear_decay",
                warmup_steps=300,
                learning_rate_scale=0.5,
                log_every=50,
                eval_every=1300,
                checkpoint_every=650,
                keep=3,
            ),
            validation_sentences=200,
        )
    )
