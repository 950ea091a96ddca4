"""An end-to-end memory network answers questions about generated stories. Runs without a download.

    python train.py --config=configs/memory_network.py --workdir=runs/memory_network
    python eval.py --workdir=runs/memory_network

Each evaluation draws what the hops attend to into runs/memory_network/samples. A single hop
(--config.model.hops=1) cannot find two facts. docs/results.md has the scores. Deviations from the paper are
new stories in each batch, 32 features, batches of 64, no linear start, and Adam in place of SGD, with a
learning rate that falls linearly to 0.
"""

from tfm.config import to_config_dict
from tfm.systems.memory_network.model import MemoryNetworkConfig
from tfm.systems.memory_network.stories import StoriesConfig
from tfm.systems.memory_network.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=MemoryNetworkConfig(features=32),
            data=StoriesConfig(batch_size=64),
            training=TrainingConfig(
                steps=3000,
                schedule="linear_decay",
                warmup_steps=100,
                peak_learning_rate=5e-3,
                clip_norm=40.0,
                log_every=250,
                eval_every=1500,
                checkpoint_every=1500,
                keep=2,
            ),
        )
    )
