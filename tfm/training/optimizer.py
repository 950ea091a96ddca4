"""Adam and its learning rate (section 5.3) from the config."""

import optax

from tfm import schedules


def make_schedule(config, d_model):
    """The learning rate as a function of the update count."""
    if config.schedule == "inverse_sqrt":
        return schedules.inverse_sqrt(d_model, config.warmup_steps, config.learning_rate_scale)
    peak = config.learning_rate_scale * (d_model * config.warmup_steps) ** -0.5
    return schedules.linear_decay(peak, config.warmup_steps, config.steps)


def make_optimizer(config, schedule):
    """Adam with the paper's betas; no clipping, no weight decay."""
    return optax.adam(
        schedule,
        b1=config.adam_b1,
        b2=config.adam_b2,
        eps=config.adam_epsilon,
        mu_dtype=config.adam_mean_dtype,
    )
