"""DALL-E on generated pictures of two coloured digits with captions, in two stages.

    python train.py --config=configs/vit.py:digits --workdir=runs/judge --config.training.steps=3000 \
        --config.model.d_model=96 --config.model.d_ff=192 --config.model.dropout=0.1
    python train.py --config=configs/dalle.py:codes --workdir=runs/codes
    python train.py --config=configs/dalle.py:images --workdir=runs/dalle --config.first_stage=runs/codes \
        --config.judge=runs/judge
    python eval.py --workdir=runs/dalle

codes: the autoencoder. images (the default): the language model of captions and codes. A classifier of digits
judges the drawn pictures. It is larger than the default of configs/vit.py, because it must judge well.
Hardware: any CPU; needs the extra digits.

Deviations from the paper: small models without dropout, 512 codes, short runs without an average of the
parameters, clipping at a norm of 1, and a learning rate that falls to 0. The codes have noise on the pixels,
a final temperature of 1/8 instead of 1/16, and a weight of their divergence of 0.1 instead of 6.6. It has its
full weight from the first step, because otherwise a few codes win in the first steps. Pictures are drawn at a
temperature of 0.4. Scores: docs/results.md.
"""

from tfm.config import to_config_dict
from tfm.decoding.config import GenerationConfig
from tfm.systems.dalle import image_tokens, text_to_image
from tfm.systems.dalle.captions import CAPTION_WORDS, FIRST_WORD_ID, WORDS, CaptionsConfig
from tfm.systems.dalle.dvae import DVAEConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

CODES = 512


def get_config(name="images"):
    configs = {"codes": codes, "images": images}
    if name not in configs:
        raise ValueError(f"Expected {', '.join(configs)}, got {name!r}.")
    return to_config_dict(configs[name]())


def codes():
    return image_tokens.Config(
        model=DVAEConfig(image_size=16, codes=CODES, width=32, code_width=32, groups=2, blocks=2),
        data=CaptionsConfig(batch_size=32),
        training=training(steps=7000, rate=3e-3),
        final_temperature=0.125,
        temperature_steps=5000,
        divergence_weight=0.1,
        divergence_steps=1,
        pixel_noise=0.125,  # one of the 17 levels of the digits
    )


def images():
    return text_to_image.Config(
        model=DALLEConfig(
            text_vocabulary=FIRST_WORD_ID + len(WORDS),
            codes=CODES,
            text_length=CAPTION_WORDS,
            side=8,
            kernel=5,
            layers=4,
            d_model=128,
            d_ff=256,
            heads=4,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        data=CaptionsConfig(batch_size=32),
        training=training(steps=4000, rate=2e-3),
        decoding=GenerationConfig(samples=1, temperature=0.4, batch_size=64),
    )


def training(*, steps, rate):
    return TrainingConfig(
        steps=steps,
        schedule="cosine_decay",
        warmup_steps=100,
        peak_learning_rate=rate,
        clip_norm=1.0,
        optimizer=AdamW(weight_decay=0.01),
        eval_every=500,
        checkpoint_every=500,
        keep=2,
    )
