"""DALL-E."""

from tfm.config import to_config_dict
from tfm.data.captions import CaptionsConfig
from tfm.models.dvae import DVAEConfig
from tfm.tasks import image_tokens
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import AdamW

CODES = 128


def get_config(name="codes"):
    return to_config_dict({"codes": codes}[name]())


def codes():
    return image_tokens.Config(
        model=DVAEConfig(image_size=16, codes=CODES, width=32, code_width=32, groups=2, blocks=2),
        data=CaptionsConfig(batch_size=32),
        training=training(steps=3000, rate=3e-3),
        final_temperature=0.25,
        temperature_steps=2000,
        divergence_steps=1,  # otherwise a few codes win in the first steps
        divergence_weight=0.5,
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
