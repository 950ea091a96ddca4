"""The built-in English-German language with a recurrent model: configs/quickstart.py but for the model.

    python train.py --config=configs/quickstart_rnn.py --workdir=runs/quickstart_rnn
    python eval.py --workdir=runs/quickstart_rnn
    tfm visualize --workdir=runs/quickstart_rnn

The model of Bahdanau et al. 2015 (a GRU in both directions, additive attention) with as many parameters,
to 2 %, as the Transformer there, as many steps, and as many tokens in a batch. Here pairs of like length are
batched; there they are packed into rows of 64. A recurrent model takes a step for each position of a row, and
attends from each to all of its row. Hardware and expected result: see docs/results.md.

Deviations from that paper, all for speed: the sizes, Glorot's random initialization, one table for source,
target and output, and Adam in place of AdaDelta.
"""

from tfm.config import to_config_dict
from tfm.data.config import DataConfig
from tfm.models.rnn_seq2seq import RNNConfig
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
            data=DataConfig(
                kind="builtin",
                vocabulary_size=4000,
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
