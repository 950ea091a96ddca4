"""Multi30k English-German: a small Transformer for 29,000 image captions.

Command, with the six files train/val/test_2016_flickr .en and .de in one folder:

    python train.py --config=configs/multi30k_en_de.py --workdir=runs/multi30k --config.data.directory=FOLDER
    python eval.py --workdir=runs/multi30k

Hardware: one GPU, where it takes minutes. On two CPU cores, each of the 72 epochs takes about 8 minutes. The
variant multi30k_en_de:laptop has no R-Drop and a third of the steps, and takes two hours of one core.
docs/results.md has the measured scores, and benchmarks/notes/multi30k.md has what each choice gave.

Deviations from the paper, all for small data: 3 + 3 layers with d_model 256, d_ff 512 and 4 heads, dropout
0.3 and R-Drop, 6,000 word pieces, packed batches of 4,096 tokens, and 8,930 steps. The learning rate rises
for 992 steps to the value of equation 3 and then falls linearly to 0. Evaluation has beam 5 and length
penalty 1, and splits inputs of 64 tokens or more.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config(name=""):
    if name not in ("", "laptop"):
        raise ValueError(f"Expected multi30k_en_de or multi30k_en_de:laptop, got the name {name!r}.")
    laptop = name == "laptop"
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=3, decoder_layers=3, d_model=256, d_ff=512, heads=4, dropout=0.3
            ),
            data=PairsConfig(
                kind="text",
                directory="data/multi30k",
                validation="val",
                test="test_2016_flickr",
                vocabulary_size=6000,
                batching="packed",
                row_length=64,
                batch_tokens=4096,
            ),
            training=TrainingConfig(
                steps=3224 if laptop else 8930,
                schedule="linear_decay",
                warmup_steps=992,
                learning_rate_scale=1.0,
                log_every=50,
                eval_every=1612 if laptop else 893,
                checkpoint_every=200,
                keep=2,
            ),
            decoding=DecodingConfig(beam_size=5, length_penalty=1.0, max_input=64),
            r_drop=0.0 if laptop else 5.0,
        )
    )
