"""What a run's training section says."""

import dataclasses

from tfm.errors import UserError

SCHEDULES = ("inverse_sqrt", "linear_decay")
NON_FINITE = ("stop", "skip")
PARALLEL_MODES = ("auto", "jit", "pmap", "mesh")
MEAN_DTYPES = ("float32", "bfloat16")
COUNTS = (
    *("steps", "warmup_steps", "log_every", "eval_every", "checkpoint_every", "keep", "micro_batches"),
    *("keep_best", "mesh_fsdp", "mesh_tensor"),
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
      adam_mean_dtype: of Adam's first moment. "bfloat16" saves a sixth of parameters and optimizer state; the
        second moment stays in float32, where a change of 2 % a step is not rounded away.
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
      patience: evaluations without a new best after which training stops; 0 never does.
      keep: how many of the newest checkpoints stay; by default one more than the paper averages, as the last
        step need not be a multiple of checkpoint_every.
      keep_best: how many of the best by validation stay beside them.
      keep_hours: beside these, one checkpoint every so many hours stays; 0 keeps none.
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
    adam_mean_dtype: str = "float32"
    micro_batches: int = 1
    ema_decay: float = 0.0
    on_non_finite: str = "stop"
    diverged_after: int = 200
    log_every: int = 100
    eval_every: int = 1500
    checkpoint_every: int = 1500
    patience: int = 0
    keep: int = 6
    keep_best: int = 1
    keep_hours: float = 0.0
    parallel: str = "auto"
    mesh_fsdp: int = 1
    mesh_tensor: int = 1

    def __post_init__(self):
        for name, allowed in (
            ("schedule", SCHEDULES),
            ("parallel", PARALLEL_MODES),
            ("adam_mean_dtype", MEAN_DTYPES),
            ("on_non_finite", NON_FINITE),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(f"training.{name} must be one of {allowed}, got {getattr(self, name)!r}.")
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"training.ema_decay must be in [0, 1), got {self.ema_decay}.")
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("seed", "patience", "keep_hours", "diverged_after"):
            if getattr(self, name) < 0:
                raise UserError(f"training.{name} must not be negative, got {getattr(self, name)}.")
        if self.schedule == "linear_decay" and self.warmup_steps >= self.steps:
            raise UserError(
                f"training.warmup_steps must be below training.steps under linear_decay, "
                f"got {self.warmup_steps} and {self.steps}."
            )
