"""TED talks, Portuguese-English: 51,785 pairs, the data set of many tutorials.

    python train.py --config=configs/ted_pt_en.py --workdir=runs/ted_pt_en
    python eval.py --workdir=runs/ted_pt_en --average=5

Hardware: one GPU. Time and score are not measured. TFDS downloads the talks (about 130 MB) on first use.

Deviations from the paper, because the data are small: 4 + 4 layers of 256 features with 4 heads and d_ff
1,024, dropout 0.3, 8,000 word pieces, sentences of at most 128 tokens, and 20,000 steps of 8,192 tokens.
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
                encoder_layers=4, decoder_layers=4, d_model=256, d_ff=1024, heads=4, dropout=0.3
            ),
            data=PairsConfig(
                kind="tfds",
                name="ted_hrlr_translate/pt_to_en",
                source_language="pt",
                target_language="en",
                vocabulary_size=8000,
                max_length=128,
                batch_tokens=8192,
            ),
            training=TrainingConfig(steps=20_000, eval_every=1000, checkpoint_every=1000),
        )
    )
