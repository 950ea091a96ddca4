"""WMT14 English-German, Table 3 of the paper: the base model and 19 variations, scored on newstest2013.

    tfm sweep configs/table3.py --workdir=runs/table3 --dry_run
    tfm sweep configs/table3.py --workdir=runs/table3 --seeds=1
    python train.py --config=configs/table3.py:C-d1024 --workdir=runs/C-d1024

Hardware in the paper: 8 P100, 12 hours for 100,000 steps of base. Here: not measured;
configs/table3_small.py has the same table with models a sixteenth as wide. TFDS downloads and prepares the
pairs on first use.

Like the paper, `tfm sweep` scores the last checkpoint without averaging. The paper counts the parameters as
its authors' code does, see docs/paper.md.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.sweep import table3
from tfm.tasks.translation.task import Config


def get_config():
    return to_config_dict(Config(data=PairsConfig(kind="tfds", name="wmt14_translate/de-en")))


def get_variants():
    return table3()
