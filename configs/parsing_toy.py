"""Constituency parsing of the built-in language. Runs on any machine without a download.

    python train.py --config=configs/parsing_toy.py --workdir=runs/parsing_toy
    python eval.py --workdir=runs/parsing_toy
    echo "The dog slept because it was tired ." | tfm translate --workdir=runs/parsing_toy

Hardware: any CPU. Expected result: see docs/results.md.

Deviations from the paper for speed: 2 + 2 layers of 64 features with 4 heads and d_ff 256, 2,000 word pieces
instead of 16,000, beam 4 instead of 21, and outputs of at most the input length + 100 instead of + 300. Other
deviations: norms before the sublayers, no dropout, packed batches of 1,024 tokens, and a learning rate that
rises to 0.005 and falls linearly to 0.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.systems.parsing.task import Config
from tfm.systems.parsing.treebank import BUILTIN_TREES
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(
                encoder_layers=2,
                decoder_layers=2,
                d_model=64,
                d_ff=256,
                heads=4,
                dropout=0.0,
                norm_order="pre",
            ),
            data=PairsConfig(
                kind=BUILTIN_TREES,
                source_language="words",
                target_language="trees",
                vocabulary_size=2000,
                normalization="nmt_nfkc",
                batching="packed",
                row_length=128,
                max_length=128,
                batch_tokens=1024,
            ),
            decoding=DecodingConfig(beam_size=4, length_penalty=0.3, max_extra_tokens=100),
            training=TrainingConfig(
                steps=1200,
                schedule="linear_decay",
                warmup_steps=100,
                peak_learning_rate=5e-3,
                log_every=100,
                eval_every=400,
                checkpoint_every=400,
                keep=2,
            ),
            validation_sentences=200,
        )
    )
