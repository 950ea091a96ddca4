"""What a run's training section says."""

import dataclasses

from tfm.errors import UserError

SCHEDULES = ("inverse_sqrt", "linear_decay")
NON_FINITE = ("stop", "skip")
PARALLEL_MODES = ("auto", "jit", "pmap", "mesh")
COUNTS = (
    *("steps", "warmup_steps", "log_every", "eval_every", "checkpoint_every", "keep", "micro_batches"),
    *("mesh_fsdp", "mesh_tensor"),
)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The paper's procedure (section 5); each default is the paper's base model.

    Attributes:
      seed: of parameters, dropout and the order of the data.
      steps: updates to make.
      schedule: "inverse_sqrt" is equation 3; "linear_decay" falls to 0 at the last step, for short runs.
      warmup_steps: of either schedule.
      learning_rate_scale: factor of the schedule. The peak of both is scale * (d_model * warmup_steps)^-0.5.
      adam_b1, adam_b2, adam_epsilon: of Adam.
      micro_batches: parts of a batch whose gradients are made one after the other: as many times less memory
        for activations, the same update but for dropout.
      ema_decay: above 0 (0.999, say), the run also keeps an exponential moving average of its parameters,
        and this is what is validated, translates and is exported.
      on_non_finite: what a loss or gradient that is not finite does: "stop" ends the run with the parameters
        before it and names the tensor; "skip" makes no update in that step and counts it.
      diverged_after: steps in a row with a loss above that of the run's start after which a warning is
        logged, once; 0 never warns.
      log_every: steps between two lines of progress.
      eval_every: steps between two evaluations on the validation split, each followed by a checkpoint.
      checkpoint_every: steps between two further checkpoints.
      keep: how many of the newest checkpoints stay, beside the best.
      parallel: "jit" runs on one device; "pmap" splits each batch over all local devices; "mesh" does so over
        the devices of all hosts and may split the parameters too; "auto" takes mesh where there are several
        hosts, else pmap where there are several devices.
      mesh_fsdp: under mesh, devices among which parameters and optimizer state are divided, each of which has
        its own share of the batch all the same.
      mesh_tensor: under mesh, devices that share each attention, feed-forward network and embedding.
    """

    seed: int = 0
    steps: int = 100_000
    schedule: str = "inverse_sqrt"
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_epsilon: float = 1e-9
    micro_batches: int = 1
    ema_decay: float = 0.0
    on_non_finite: str = "stop"
    diverged_after: int = 200
    log_every: int = 100
    eval_every: int = 1500
    checkpoint_every: int = 1500
    keep: int = 5
    parallel: str = "auto"
    mesh_fsdp: int = 1
    mesh_tensor: int = 1

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            raise UserError(f"training.schedule must be one of {SCHEDULES}, got {self.schedule!r}.")
        if self.parallel not in PARALLEL_MODES:
            raise UserError(f"training.parallel must be one of {PARALLEL_MODES}, got {self.parallel!r}.")
        if self.on_non_finite not in NON_FINITE:
            raise UserError(
                f"training.on_non_finite must be one of {NON_FINITE}, got {self.on_non_finite!r}."
            )
        if self.diverged_after < 0:
            raise UserError(f"training.diverged_after must not be negative, got {self.diverged_after}.")
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"training.ema_decay must be in [0, 1), got {self.ema_decay}.")
        for name in (
            "steps",
            "warmup_steps",
            "log_every",
            "eval_every",
            "checkpoint_every",
            "keep",
            "micro_batches",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} must be at least 1, got {getattr(self, name)}.")
        if self.schedule == "linear_decay" and self.warmup_steps >= self.steps:
            raise UserError(
                f"training.warmup_steps must be below training.steps under linear_decay, "
                f"got {self.warmup_steps} and {self.steps}."
            )
