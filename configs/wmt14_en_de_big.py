"""WMT14 English-German, the paper's big model (Table 2: 28.4 BLEU; Table 3, row big).

    python train.py --config=configs/wmt14_en_de_big.py --workdir=runs/wmt14_en_de_big
    python eval.py --workdir=runs/wmt14_en_de_big --average=20

Hardware in the paper: 8 P100, 3.5 days for 300,000 steps of 1.0 s. Here: not measured.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.3),
            data=PairsConfig(kind="tfds", name="wmt14_translate/de-en"),
            # Checkpoints of the paper are 10 minutes apart: 600 steps of the big model.
            training=TrainingConfig(steps=300_000, eval_every=3000, checkpoint_every=600, keep=22),
        )
    )
