"""The training section of a config."""

import dataclasses
import re
from typing import Any

from tfm.config import OnResume, check_fields, field
from tfm.errors import UserError
from tfm.training.optimizers import DECAYING, Adam, find_optimizer, parse_factors
from tfm.training.trackers import check_names

BEST_BY = re.compile(r"((min|max):.+)?", re.DOTALL)
MAX_COUNT = 10**9  # of steps, evaluations and checkpoints; the step counter is an int32


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The training procedure, with the defaults of the paper's base model (section 5)."""

    seed: int = field(
        0,
        "Random seed of the initial parameters, dropout and the order of the data.",
        minimum=0,
        maximum=2**32 - 1,
    )
    steps: int = field(
        100_000,
        "Number of updates. With linear_decay and cosine_decay, it changes the learning rate of every step.",
        minimum=1,
        maximum=MAX_COUNT,
        resume=OnResume.FREE,
        unless=("schedule", DECAYING),
    )
    schedule: str = field(
        "inverse_sqrt",
        "Learning-rate schedule after a linear warm-up. inverse_sqrt is equation 3 of the paper, "
        "linear_decay and cosine_decay fall to 0 after the last step, and constant stays at the peak.",
        choices=("inverse_sqrt", *DECAYING, "constant"),
    )
    warmup_steps: int = field(
        4000, "Steps of the linear warm-up of the learning rate.", minimum=1, maximum=MAX_COUNT, unit="steps"
    )
    peak_learning_rate: float | None = field(
        None,
        "Largest learning rate, reached at step warmup_steps, before learning_rate_scale. None uses the "
        "paper's rate, (d_model * warmup_steps)^-0.5, and needs a model with a d_model.",
        greater_than=0,
        maximum=1000,
    )
    learning_rate_scale: float = field(
        1.0, "Constant factor of the learning rate of every step.", greater_than=0, maximum=1000
    )
    clip_norm: float | None = field(
        None,
        "Maximum global norm of the gradients. Larger gradients are scaled down to it. None, as in the "
        "paper, turns clipping off.",
        greater_than=0,
        maximum=1e9,
    )
    freeze: tuple[str, ...] = field(
        (),
        "Shell patterns of the paths of parameters that are not trained, such as encoder/*.",
        resume=OnResume.FIXED,
    )
    learning_rate_factors: tuple[str, ...] = field(
        (),
        "Factors of the learning rate of parameters by shell patterns of their paths, PATTERN=FACTOR, for "
        "example encoder/*=0.1. The first pattern that matches a parameter counts.",
    )
    weight_decay_factors: tuple[str, ...] = field(
        (),
        "Factors of the optimizer's weight decay of parameters, PATTERN=FACTOR, as learning_rate_factors. "
        "Parameters of optimizer.not_decayed stay without weight decay.",
    )
    gradient_accumulation_steps: int = field(
        1,
        "Number of micro-batches per update. Activation memory shrinks by this factor. The update stays the "
        "same except for the dropout masks.",
        minimum=1,
        maximum=65_536,
        unit="micro-batches",
        resume=OnResume.FREE,
    )
    ema_decay: float = field(
        0.0,
        "Decay per step of an exponential moving average of parameters and state, for example 0.999. "
        "Validation, translation and export then use the average. The initial parameters do not count: the "
        "average is corrected for its start as in Adam. 0 keeps no average.",
        minimum=0,
        maximum=0.999999,
        resume=OnResume.FIXED,
    )
    on_non_finite: str = field(
        "stop",
        "Reaction to a loss or gradient that is not finite. stop ends the run with the parameters from "
        "before that step and names the tensor. skip leaves out the update of that step and counts it.",
        choices=("stop", "skip"),
        resume=OnResume.FREE,
    )
    log_every: int = field(
        100,
        "Steps between two lines of progress.",
        minimum=1,
        maximum=MAX_COUNT,
        unit="steps",
        resume=OnResume.FREE,
    )
    eval_every: int = field(
        1500,
        "Steps between two evaluations on the validation split. Every evaluation also saves a checkpoint.",
        minimum=1,
        maximum=MAX_COUNT,
        unit="steps",
        resume=OnResume.FREE,
    )
    checkpoint_every: int = field(
        1500,
        "Steps between two checkpoints. Evaluations save further checkpoints.",
        minimum=1,
        maximum=MAX_COUNT,
        unit="steps",
        resume=OnResume.FREE,
    )
    best_by: str = field(
        "",
        "Validation score that selects the best checkpoint, with its order, such as min:loss or max:bleu. "
        "The name loss is the validation loss of any task. If empty, the score of the task.",
        pattern=BEST_BY,
        form="min:NAME or max:NAME",
        resume=OnResume.FREE,
    )
    patience: int = field(
        0,
        "Evaluations after which training stops early, if they improve neither the score that selects the "
        "best checkpoint nor the validation loss. 0 turns early stopping off.",
        minimum=0,
        maximum=MAX_COUNT,
        unit="evaluations",
        resume=OnResume.FREE,
    )
    keep: int = field(
        6,
        "Number of newest checkpoints to keep. The default is one more than the paper averages, because the "
        "last step is not always a multiple of checkpoint_every.",
        minimum=1,
        maximum=MAX_COUNT,
        unit="checkpoints",
        resume=OnResume.FREE,
    )
    keep_best: int = field(
        1,
        "Number of checkpoints with the best validation score to keep in addition to the newest.",
        minimum=1,
        maximum=MAX_COUNT,
        unit="checkpoints",
        resume=OnResume.FREE,
    )
    keep_hours: float = field(
        0.0,
        "Also keep one checkpoint every N hours. 0 turns this off.",
        minimum=0,
        maximum=1_000_000,
        unit="hours",
        resume=OnResume.FREE,
    )
    trackers: tuple[str, ...] = field(
        ("tensorboard",),
        "Trackers that receive the metrics and samples of the run: tensorboard, wandb, mlflow, or a class of "
        "another package as package.module:Class.",
        resume=OnResume.FREE,
    )
    parallel: str = field(
        "mesh",
        "Layout of a step on the devices. jit runs on one device. pmap splits each batch over all local "
        "devices. mesh splits each batch over the devices of all hosts and can also split the parameters.",
        choices=("jit", "pmap", "mesh"),
        resume=OnResume.FREE,
    )
    mesh_fsdp: int = field(
        1,
        "Size of the mesh axis over which parameters and optimizer state are divided. The batch is divided "
        "over this axis, too. Needs the layout mesh.",
        minimum=1,
        maximum=65_536,
        unit="devices",
        resume=OnResume.FREE,
    )
    mesh_tensor: int = field(
        1,
        "Size of the mesh axis over which every attention, feed-forward network and embedding is divided. "
        "Needs the layout mesh.",
        minimum=1,
        maximum=65_536,
        unit="devices",
        resume=OnResume.FREE,
    )
    optimizer: Any = field(
        Adam,
        "Optimizer and its settings.",
        section_class=lambda section: find_optimizer(section["name"]),
    )

    def __post_init__(self):
        check_fields(self, "training")
        check_names(self.trackers)
        for name in ("learning_rate_factors", "weight_decay_factors"):
            parse_factors(name, getattr(self, name))
        if self.parallel != "mesh" and self.mesh_fsdp * self.mesh_tensor > 1:
            raise UserError(
                "Expected training.parallel to be 'mesh' because training.mesh_fsdp or mesh_tensor is above "
                f"1, got {self.parallel!r}. Change it, or set mesh_fsdp and mesh_tensor to 1."
            )
        if self.schedule in DECAYING and self.warmup_steps > self.steps:
            raise UserError(
                f"Expected training.warmup_steps to be at most training.steps ({self.steps}) with the "
                f"schedule {self.schedule}, got {self.warmup_steps}."
            )
