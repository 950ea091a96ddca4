"""Copying, reversing and adding: does a model generalize to sequences longer than in its training?

    python train.py --config=configs/algorithms.py:copy --workdir=runs/copy
    python eval.py --workdir=runs/copy --split=double

The tasks are copy, reverse and add. Training has sources of at most 10 symbols. The splits "double" and
"quadruple" have 20 and 40. algorithms.py:copy,transformer is the Transformer of the same width and depth in
place of the Universal Transformer. With --config.model.random_start=0, rows begin at position 0.
python -m benchmarks.algorithms scores the runs, and tfm/systems/universal/README.md has the results.

Deviations from Dehghani et al. 2018: sequences of these lengths, not of 40 and 400 symbols, 64 features, no
dropout, no label smoothing, greedy search, and a learning rate that falls linearly to 0.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

TASKS = ("copy", "reverse", "add")
MODELS = {"universal": UniversalConfig, "transformer": TransformerConfig}


def get_config(name="copy"):
    task, _, model = name.partition(",")
    if task not in TASKS or (model or "universal") not in MODELS:
        raise ValueError(f"Expected one of {TASKS}, and ',transformer' after it or not, got {name!r}.")
    return to_config_dict(
        Config(
            model=MODELS[model or "universal"](
                d_model=64,
                d_ff=128,
                heads=4,
                encoder_layers=4,
                decoder_layers=4,
                dropout=0.0,
                random_start=40,
            ),
            data=PairsConfig(
                kind=f"tfm.systems.universal.algorithms:{task}",
                vocabulary_size=280 if task == "add" else 300,
                batching="packed",
                row_length=48,
                max_length=48,
                batch_tokens=960,
            ),
            training=TrainingConfig(
                steps=2000,
                schedule="linear_decay",
                warmup_steps=100,
                peak_learning_rate=2e-3,
                clip_norm=1.0,
                log_every=100,
                eval_every=1000,
                checkpoint_every=1000,
                keep=2,
            ),
            decoding=DecodingConfig(beam_size=1, max_extra_tokens=10),
            label_smoothing=0.0,
            validation_sentences=50,
            validation_samples=0,
        )
    )
