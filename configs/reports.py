"""T-DMCA (Liu et al. 2018) writes the summaries of generated reports. Runs without a download.

    python train.py --config=configs/reports.py --workdir=runs/reports
    python eval.py --workdir=runs/reports
    tfm generate --workdir=runs/reports --prefix="They noted the colour red. Summary:"

A report has about 100 tokens, and local attention sees blocks of 16. With --config.model.pattern=L, all
layers are local, and the model cannot find what it has to copy. Scores: docs/results.md.

Deviations from the paper: the data, the sizes, no mixture of experts, no dropout, rotary positions in
addition to sinusoids, greedy search, and Adam in place of Adafactor, with a learning rate that rises to 2e-3
and falls linearly to 0.
"""

from tfm.config import to_config_dict
from tfm.decoding.config import GenerationConfig
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.systems.t_dmca.summaries import SummariesConfig
from tfm.systems.t_dmca.task import Config
from tfm.training.config import TrainingConfig


def get_config():
    return to_config_dict(
        Config(
            model=TDMCAConfig(
                d_model=128,
                d_ff=256,
                heads=4,
                dropout=0.0,
                attention_dropout=0.0,
                positions="interleaved_and_rotary",
                local_block=16,
            ),
            data=SummariesConfig(
                kind="tfm.systems.t_dmca.reports:reports",
                tokenizer="word_pieces",
                vocabulary_size=600,
                rows="packed",
                row_length=256,
                batch_tokens=2560,
            ),
            training=TrainingConfig(
                steps=2400,
                schedule="linear_decay",
                warmup_steps=100,
                peak_learning_rate=2e-3,
                clip_norm=1.0,
                log_every=50,
                eval_every=1200,
                checkpoint_every=1200,
                keep=2,
            ),
            decoding=GenerationConfig(max_tokens=40, beam_size=1, samples=0),
            stride=256,
            validation_documents=50,
        )
    )
