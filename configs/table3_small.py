"""Table 3 of the paper with models a sixteenth as wide and half as deep, on 500 built-in sentence pairs.

    tfm sweep configs/table3_small.py --workdir=runs/table3_small --jobs=2
    python train.py --config=configs/table3_small.py:C-d1024 --workdir=runs/C-d1024

Hardware, hours and result: see docs/results.md and benchmarks/notes/table3_small.md.

Every width of the paper (d_model, d_ff, features of keys and values) is divided by 16, and every number of
layers by 2. Heads and dropout rates are as in the paper. There are 500 word pieces. Base trains 600 steps of
512 tokens on each side, about 20 passes over the pairs, and big trains 1,800 steps. There are few pairs, so
that base overfits without dropout, as in the paper. The learning rate rises for 150 steps to 0.7 times the
value of equation 3, and then falls linearly to 0, so that the validation loss flattens at the end. The
warning about a high peak is expected, because the models are narrow. Searches are greedy, because only the
perplexity is of interest.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.sweep import table3
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

WIDTH_DIVISOR, DEPTH_DIVISOR, STEPS = 16, 2, 600


def get_config():
    depth = 6 // DEPTH_DIVISOR
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=depth,
                decoder_layers=depth,
                d_model=512 // WIDTH_DIVISOR,
                d_ff=2048 // WIDTH_DIVISOR,
                scan=True,  # compiles a layer only once, because compilation takes half of a run
            ),
            data=PairsConfig(
                kind="builtin",
                train="train[:500]",
                validation="validation[:500]",
                vocabulary_size=500,
                normalization="nmt_nfkc",
                batching="packed",
                row_length=64,
                max_length=64,
                batch_tokens=512,
            ),
            training=TrainingConfig(
                steps=STEPS,
                schedule="linear_decay",
                warmup_steps=150,
                learning_rate_scale=0.7,
                log_every=50,
                eval_every=STEPS // 4,
                checkpoint_every=STEPS,
                keep=1,
                trackers=(),
            ),
            # One batch, because the compilation of a search takes longer than the search.
            decoding=DecodingConfig(beam_size=1, batch_size=500),
            validation_sentences=0,
            ter=False,
        )
    )


def get_variants():
    return table3(width_divisor=WIDTH_DIVISOR, depth_divisor=DEPTH_DIVISOR, steps=STEPS)
