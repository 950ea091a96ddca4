"""WMT14 English-German, the paper's base model (Table 2: 27.3 BLEU; Table 3, row base).

    python train.py --config=configs/wmt14_en_de_base.py --workdir=runs/wmt14_en_de_base
    python eval.py --workdir=runs/wmt14_en_de_base --average=5

Hardware in the paper: 8 P100, 12 hours for 100,000 steps of 0.4 s. Here: not measured.
TFDS downloads and prepares the 4.5 million pairs on first use (several GB).

The defaults of `tfm.tasks.translation.Config` are the paper's base model, so this file sets only the data.
The vocabulary has 37,000 joint word pieces, and batches have about 25,000 tokens on each side.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.tasks.translation.task import Config


def get_config():
    return to_config_dict(Config(data=PairsConfig(kind="tfds", name="wmt14_translate/de-en")))
