"""Multi30k English-German: a small Transformer for 29,000 image captions.

Command, with the six files train/val/test_2016_flickr .en and .de in one folder:

    python train.py --config=configs/multi30k_en_de.py --workdir=runs/multi30k --config.data.directory=FOLDER
    python eval.py --workdir=runs/multi30k --average=5 --config.decoding.beam_size=5

Hardware: any; two CPU cores are enough. docs/results.md has the measured scores, and
benchmarks/notes/multi30k.md has the time and the curve.

Deviations from the paper, all for small data: 3 + 3 layers with d_model 256, d_ff 512 and 4 heads, dropout
0.2, 6,000 word pieces, batches of 2,048 tokens, and 5,000 steps. The learning rate peaks at 0.7 times the
value of equation 3 and then falls linearly to 0.
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
                encoder_layers=3, decoder_layers=3, d_model=256, d_ff=512, heads=4, dropout=0.2
            ),
            data=PairsConfig(
                kind="text",
                directory="data/multi30k",
                validation="val",
                test="test_2016_flickr",
                vocabulary_size=6000,
                batching="packed",
                row_length=64,
                batch_tokens=2048,
            ),
            training=TrainingConfig(
                steps=5000,
                schedule="linear_decay",
                warmup_steps=1000,
                learning_rate_scale=0.7,
                log_every=50,
                eval_every=500,
                checkpoint_every=250,
                keep=8,
            ),
        )
    )
