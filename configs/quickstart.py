"""The built-in English-German language: a first complete run on any machine, without a download.

    python train.py --config=configs/quickstart.py --workdir=runs/quickstart
    python eval.py --workdir=runs/quickstart
    tfm visualize --workdir=runs/quickstart

`make quickstart` does all three. Hardware and expected result: see docs/results.md. The variant
quickstart:long trains on twice as many tokens, takes twice as long and makes fewer mistakes.

Deviations from the paper for speed: 2 + 2 layers of 128 features with 4 heads and d_ff 512, 4,000 word
pieces, and 2,600 steps of 512 tokens. The learning rate rises for 300 steps to half of the value of equation
3 and then falls linearly to 0. Inputs of 64 tokens or more are split. For accuracy: no dropout, rotary
positions in addition to sinusoids, and a fifth of the training sentences joined to longer texts.
benchmarks/notes/quickstart.md compares the choices.
"""

from tfm.config import to_config_dict
from tfm.data.config import PairsConfig
from tfm.decoding.config import DecodingConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.training.config import TrainingConfig

MODEL = TransformerConfig(
    encoder_layers=2,
    decoder_layers=2,
    d_model=128,
    d_ff=512,
    heads=4,
    dropout=0.0,
    positions="interleaved_and_rotary",
)


def get_config(name=""):
    if name not in ("", "long"):
        raise ValueError(f"Expected quickstart or quickstart:long, got the name {name!r}.")
    return to_config_dict(
        Config(
            model=MODEL,
            data=PairsConfig(
                kind="builtin",
                joined_share=0.2,
                vocabulary_size=4000,
                normalization="nmt_nfkc_quotes",
                vocabulary_pairs=20_000,
                batching="packed",
                row_length=128,
                batch_tokens=1024 if name == "long" else 512,
            ),
            training=TrainingConfig(
                steps=2600,
                schedule="linear_decay",
                warmup_steps=300,
                learning_rate_scale=0.5,
                log_every=50,
                eval_every=650 if name == "long" else 1300,
                checkpoint_every=650,
                keep=3,
            ),
            # The model omits words of inputs that are much longer than a sentence, so paragraphs are split.
            decoding=DecodingConfig(max_input=64),
            validation_sentences=200,
        )
    )
