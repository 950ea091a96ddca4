"""The built-in English-German language of configs/quickstart.py with a recurrent model.

    python train.py --config=configs/quickstart_rnn.py --workdir=runs/quickstart_rnn
    python eval.py --workdir=runs/quickstart_rnn
    tfm visualize --workdir=runs/quickstart_rnn

The model is from Bahdanau et al. 2015: a GRU in both directions and additive attention. It has about as many
parameters as the Transformer of configs/quickstart.py (1 % more). It trains for 1,000 steps of 2,048 tokens a
side, and the Transformer for 2,600 steps of 512. This config batches pairs of similar length, because packing
does not suit a recurrent model: it takes a step for each position of a row, and attends from each position to
the whole row. Hardware and expected result: see docs/results.md.

Deviations from that paper, all for speed: the sizes, word pieces, Glorot's random initialization, a single
table for source, target and output, and Adam with a learning rate that falls linearly to 0 instead of
AdaDelta.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=RNNConfig(
                embedding_features=128,
                hidden_features=176,
                attention_features=128,
                output_features=128,
                share_embeddings=True,
                tie_output=True,
                initialization="glorot",
            ),
            data=PairsConfig(
                kind="builtin",
                vocabulary_size=4000,
                normalization="nmt_nfkc_quotes",
                vocabulary_pairs=20_000,
                batching="buckets",
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=1000,
                schedule="linear_decay",
                warmup_steps=250,
                peak_learning_rate=0.004,
                clip_norm=1.0,
                log_every=50,
                eval_every=250,
                checkpoint_every=250,
                keep=3,
            ),
            validation_sentences=200,
        )
    )
