"""The training section of a config."""

import dataclasses
from typing import Any, ClassVar

from tfm.errors import UserError
from tfm.fields import CHANGEABLE, WITH_RESET, check_fields, field
from tfm.training.optimizers import DECAYING, Adam, find_optimizer
from tfm.training.trackers import check_names

MOST = 10**9  # of what counts steps; the step itself is an int32


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The paper's procedure (section 5); each default is the paper's base model."""

    seed: int = field(
        0,
        "Seed of random initialization, dropout and the order of the data. JAX ignores higher bits.",
        least=0,
        most=2**32 - 1,
    )
    steps: int = field(
        100_000,
        "Updates to make. Under a schedule that decays to 0 the learning rate of every step depends on it.",
        least=1,
        most=MOST,
        resume=CHANGEABLE,
        unless=("schedule", DECAYING),
    )
    schedule: str = field(
        "inverse_sqrt",
        "Of the learning rate, all with a linear warm-up: inverse_sqrt is equation 3; linear_decay and "
        "cosine_decay fall to 0 at the last step; constant stays at its peak.",
        choices=("inverse_sqrt", *DECAYING, "constant"),
    )
    warmup_steps: int = field(
        4000, "Steps in which the learning rate rises, of any schedule.", least=1, most=MOST, unit="steps"
    )
    peak_learning_rate: float | None = field(
        None,
        "Largest learning rate, that of step warmup_steps. None is the paper's, "
        "(d_model * warmup_steps)^-0.5, for a model that has a d_model.",
        above=0,
        most=1000,
    )
    learning_rate_scale: float = field(1.0, "Factor of the schedule.", above=0, most=1000)
    clip_norm: float | None = field(
        None,
        "Gradients of a larger global norm are scaled down to it; None, as in the paper, never does.",
        above=0,
        most=1e9,
    )
    freeze: tuple[str, ...] = field(
        (),
        "Shell patterns of the paths of parameters that keep their first values, such as encoder/*.",
        resume=WITH_RESET,
    )
    gradient_accumulation_steps: int = field(
        1,
        "Parts of a batch whose gradients are computed one after the other: as many times less memory for "
        "activations, the same update except for other dropout masks.",
        least=1,
        most=65_536,
        unit="parts",
        resume=CHANGEABLE,
    )
    ema_decay: float = field(
        0.0,
        "Above 0 (0.999, say), the run also keeps an exponential moving average of its parameters, and this "
        "is what is validated, translates and is exported.",
        least=0,
        most=0.999999,
        resume=WITH_RESET,
    )
    on_non_finite: str = field(
        "stop",
        "On a loss or gradient that is not finite: stop ends the run with the parameters before it and names "
        "the tensor; skip makes no update in that step and counts it.",
        choices=("stop", "skip"),
        resume=CHANGEABLE,
    )
    diverged_after: int = field(
        200,
        "Steps in a row with a loss above that of the run's start after which a warning is logged, once; "
        "0 never warns.",
        least=0,
        most=MOST,
        unit="steps",
        resume=CHANGEABLE,
    )
    log_every: int = field(
        100, "Steps between two lines of progress.", least=1, most=MOST, unit="steps", resume=CHANGEABLE
    )
    eval_every: int = field(
        1500,
        "Steps between two evaluations on the validation split, each followed by a checkpoint.",
        least=1,
        most=MOST,
        unit="steps",
        resume=CHANGEABLE,
    )
    checkpoint_every: int = field(
        1500, "Steps between two further checkpoints.", least=1, most=MOST, unit="steps", resume=CHANGEABLE
    )
    patience: int = field(
        0,
        "Evaluations without a new best after which training stops; 0 never does.",
        least=0,
        most=MOST,
        unit="evaluations",
        resume=CHANGEABLE,
    )
    keep: int = field(
        6,
        "How many of the newest checkpoints stay. The default is one more than the paper averages, as the "
        "last step need not be a multiple of checkpoint_every.",
        least=1,
        most=MOST,
        unit="checkpoints",
        resume=CHANGEABLE,
    )
    keep_best: int = field(
        1,
        "How many of the best by validation stay beside them.",
        least=1,
        most=MOST,
        unit="checkpoints",
        resume=CHANGEABLE,
    )
    keep_hours: float = field(
        0.0,
        "Beside these, one checkpoint every so many hours stays; 0 keeps none.",
        least=0,
        most=1_000_000,
        unit="hours",
        resume=CHANGEABLE,
    )
    trackers: tuple[str, ...] = field(
        ("tensorboard",),
        "What shows the run beside its log and its metrics.jsonl: tensorboard, wandb, mlflow, or trackers of "
        "your own package, package.module:Class.",
        resume=CHANGEABLE,
    )
    parallel: str = field(
        "auto",
        "jit runs on one device; pmap splits each batch over all local devices; mesh does so over the "
        "devices of all hosts and may split the parameters too; auto takes mesh where there are several "
        "hosts or mesh_fsdp or mesh_tensor is above 1, else pmap where there are several devices. Dropout "
        "masks differ between layouts.",
        choices=("auto", "jit", "pmap", "mesh"),
        resume=CHANGEABLE,
    )
    mesh_fsdp: int = field(
        1,
        "Under mesh, devices among which parameters and optimizer state are divided, each of which has its "
        "own part of the batch all the same. Dropout masks differ between layouts.",
        least=1,
        most=65_536,
        unit="devices",
        resume=CHANGEABLE,
    )
    mesh_tensor: int = field(
        1,
        "Under mesh, devices that share each attention, feed-forward network and embedding. Dropout masks "
        "differ between layouts.",
        least=1,
        most=65_536,
        unit="devices",
        resume=CHANGEABLE,
    )
    optimizer: Any = field(
        Adam,
        "The optimizer that optimizer.name names.",
        section_class=lambda section: find_optimizer(section["name"]),
    )

    RENAMED: ClassVar[dict[str, str]] = {
        "adam_b1": "optimizer.b1",
        "adam_b2": "optimizer.b2",
        "adam_epsilon": "optimizer.epsilon",
        "adam_mean_dtype": "optimizer.mean_dtype",
        "micro_batches": "gradient_accumulation_steps",
    }

    def __post_init__(self):
        check_fields(self, "training")
        check_names(self.trackers)
        if self.parallel in ("jit", "pmap") and self.mesh_fsdp * self.mesh_tensor > 1:
            raise UserError(
                "training.mesh_fsdp and mesh_tensor are for training.parallel 'mesh' or 'auto', got "
                f"{self.parallel!r}: change it, or set both to 1."
            )
        if self.schedule in DECAYING and self.warmup_steps >= self.steps:
            raise UserError(
                f"training.warmup_steps must be below training.steps under {self.schedule}, "
                f"got {self.warmup_steps} and {self.steps}."
            )
