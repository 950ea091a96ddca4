"""ConvS2S on the built-in English-German language, for a comparison with configs/quickstart.py.

    python train.py --config=configs/quickstart_conv.py --workdir=runs/quickstart_conv
    python eval.py --workdir=runs/quickstart_conv

Data, steps and batches are the same as in that config. Six layers of kernel 5 let each source position see 12
neighbours on both sides, so a pronoun sees the nouns that it may refer to. In quickstart_conv.py:shallow, two
layers of kernel 3 see 2 neighbours. Scores: docs/results.md.

Gehring et al. 2017 use 20 layers of 512 features and kernel 3, dropout, Nesterov's method and clipping at
0.1. Here, the layers have 128 features and no dropout, and Adam has a learning rate that falls linearly to 0
and clipping at 1.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.systems.conv_s2s.model import ConvS2SConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

LAYERS = {"": ("6x128/5", "3x128/5"), "shallow": ("2x128/3", "2x128/3")}


def get_config(name=""):
    if name not in LAYERS:
        raise ValueError(f"Expected quickstart_conv.py or quickstart_conv.py:shallow, got the name {name!r}.")
    encoder, decoder = LAYERS[name]
    return to_config_dict(
        Config(
            model=ConvS2SConfig(
                encoder=encoder, decoder=decoder, embedding_features=128, max_positions=512, dropout=0.0
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
                peak_learning_rate=2e-3,
                clip_norm=1.0,
                log_every=50,
                eval_every=1300,
                checkpoint_every=650,
                keep=3,
            ),
            validation_sentences=200,
        )
    )
