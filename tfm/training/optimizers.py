"""Optimizers and learning-rate schedules by name. The defaults are from section 5.3 of the paper.

An optimizer is a frozen dataclass with a field `name`, further fields, and a method `make`. The config field
`training.optimizer.name` is a key of `OPTIMIZERS` or "package.module:Class" of another package.
"""

import dataclasses
import fnmatch
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import optax
import optax.contrib
from optax.contrib import MuonDimensionNumbers

from tfm import schedules
from tfm.config import OnResume, check_fields, field, find_by_name
from tfm.errors import UserError
from tfm.io.tree_paths import join_path
from tfm.schedules import Schedule

if TYPE_CHECKING:
    from tfm.training.config import TrainingConfig

NOT_DECAYED = ("*/bias", "*/scale")  # biases of projections, scales and biases of norms
LARGEST_BETA = 0.999999  # 1 - beta of values closer to 1 loses its precision in float32
DECAYING = ("linear_decay", "cosine_decay")  # schedules that depend on training.steps
PATH = "training.optimizer"
DECOUPLED = "Weight decay. Each step subtracts learning rate * weight_decay * parameter."  # help of the field
Factors = tuple[tuple[str, float], ...]  # (pattern of paths, factor)
LARGE_PEAK = 0.01  # a learning rate of the paper's rule that is worth a warning
log = logging.getLogger(__name__)


class OptimizerConfig:
    """The base class of the optimizers below. A class of another package needs `name` and `make` only."""

    name: str

    def __post_init__(self):
        check_fields(self, PATH)

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the Optax transformation. Training adds its updates to the parameters."""
        raise NotImplementedError


def _name(default: str) -> Any:
    return field(
        default, "Name of the optimizer. The other fields depend on the optimizer.", resume=OnResume.FIXED
    )


def _beta(default: float, help: str, **rules: Any) -> Any:
    return field(default, help, minimum=0, maximum=LARGEST_BETA, **rules)


def _weight_decay(default: float, help: str) -> Any:
    return field(default, help, minimum=0, maximum=10)


def _epsilon(default: float) -> Any:
    # Much smaller values are 0 in float32.
    return field(default, "Added to the square root of the second moment.", minimum=1e-30, maximum=1)


def _not_decayed() -> Any:
    return field(
        NOT_DECAYED,
        "Shell patterns of the paths of parameters without weight decay, such as decoder/*/bias.",
    )


@dataclasses.dataclass(frozen=True)
class AdamFields(OptimizerConfig):
    """The fields of Adam and AdamW. Neither inherits from the other, so a config that changes resets them."""

    name: str = _name("adam")
    b1: float = _beta(0.9, "Decay of the first moment.")
    b2: float = _beta(0.98, "Decay of the second moment.")
    epsilon: float = _epsilon(1e-9)
    mean_dtype: str = field(
        "float32",
        "Dtype of the first moment. bfloat16 saves a sixth of the memory of parameters and optimizer state. "
        "The second moment stays in float32, because bfloat16 would round its changes of 2 % a step away.",
        choices=("float32", "bfloat16"),
    )


@dataclasses.dataclass(frozen=True)
class Adam(AdamFields):
    """Adam (Kingma and Ba 2015) with the hyperparameters of section 5.3."""

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns `optax.adam`."""
        return optax.adam(learning_rate, b1=self.b1, b2=self.b2, eps=self.epsilon, mu_dtype=self.mean_dtype)


@dataclasses.dataclass(frozen=True)
class AdamW(AdamFields):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019). The defaults are PyTorch's."""

    name: str = _name("adamw")
    b2: float = _beta(0.999, "Decay of the second moment.")
    epsilon: float = _epsilon(1e-8)
    weight_decay: float = _weight_decay(0.01, DECOUPLED)
    not_decayed: tuple[str, ...] = _not_decayed()

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns `optax.adamw`."""
        return optax.adamw(
            learning_rate,
            b1=self.b1,
            b2=self.b2,
            eps=self.epsilon,
            mu_dtype=self.mean_dtype,
            weight_decay=self.weight_decay,
            mask=decay_mask(self.not_decayed),
        )


@dataclasses.dataclass(frozen=True)
class Adafactor(OptimizerConfig):
    """Adafactor (Shazeer and Stern 2018): a factored second moment, and by default no first moment."""

    name: str = _name("adafactor")
    smallest_factored: int = field(
        128,
        "Minimum size of two axes of a parameter whose second moment is factored. Smaller parameters have a "
        "full second moment.",
        minimum=1,
        maximum=2**31,
        resume=OnResume.FIXED,
    )
    momentum: float = _beta(0.0, "Decay of the first moment. 0 keeps no first moment.", resume=OnResume.FIXED)
    parameter_scale: bool = field(
        True,
        "Multiply each update by the root mean square of its parameter. The learning rate is then relative "
        "to the parameters, about 0.01.",
        resume=OnResume.FIXED,
    )

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns `optax.adafactor`."""
        return optax.adafactor(
            learning_rate,
            min_dim_size_to_factor=self.smallest_factored,
            momentum=self.momentum or None,
            multiply_by_parameter_scale=self.parameter_scale,
        )


@dataclasses.dataclass(frozen=True)
class SGD(OptimizerConfig):
    """Stochastic gradient descent, optionally with Polyak's or Nesterov's momentum."""

    name: str = _name("sgd")
    momentum: float = _beta(0.0, "Decay of the momentum. 0 keeps no momentum.", resume=OnResume.FIXED)
    nesterov: bool = field(False, "Use Nesterov's momentum.")
    weight_decay: float = _weight_decay(
        0.0, "Weight decay. This factor times the parameter is added to its gradient."
    )
    not_decayed: tuple[str, ...] = _not_decayed()

    def __post_init__(self):
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UserError(
                f"Expected {PATH}.momentum to be above 0 because {PATH}.nesterov is set, got {self.momentum}."
            )

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns `optax.sgd` after `optax.add_decayed_weights`."""
        return optax.chain(
            optax.add_decayed_weights(self.weight_decay, decay_mask(self.not_decayed)),
            optax.sgd(learning_rate, momentum=self.momentum or None, nesterov=self.nesterov),
        )


@dataclasses.dataclass(frozen=True)
class Muon(OptimizerConfig):
    """Muon (Jordan et al. 2024) for kernels, and Adam with Nesterov's momentum for all other parameters.

    The update of a kernel is its momentum with all singular values near 1. Learning rates are about 0.02.
    """

    name: str = _name("muon")
    momentum: float = _beta(0.95, "Decay of the momentum of kernels.", resume=OnResume.FIXED)
    weight_decay: float = _weight_decay(0.1, DECOUPLED + " Only kernels decay.")
    b2: float = _beta(0.99, "Decay of the second moment of Adam.")
    adam_factor: float = field(
        0.15, "Factor of the learning rate of the parameters that Adam trains.", minimum=0, maximum=10
    )

    def make(self, learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns `optax.contrib.muon`."""
        return optax.contrib.muon(
            learning_rate,
            beta=self.momentum,
            weight_decay=self.weight_decay,
            adam_b2=self.b2,
            adam_learning_rate=lambda count: self.adam_factor * learning_rate(count),
            muon_weight_dimension_numbers=find_matrices,
        )


def find_matrices(params: Any) -> Any:
    """Returns the axes of each kernel as a matrix: inputs and outputs. Returns None for other parameters.

    The last axis of a kernel is its output, as in dense layers, convolutions [..., I, O] and the output
    [H, V, D] of attention. Only the projections of attention to heads have two output axes.
    """

    def find(path: Any, x: jax.Array) -> MuonDimensionNumbers | None:
        *_, module, name = ("", *join_path(path).split("/"))
        if name != "kernel":
            return None
        # Convolutions can have these names, too, but have four axes.
        is_projection = x.ndim == 3 and module in ("query", "key", "value")
        outputs = 2 if is_projection or module in ("compress_key", "compress_value") else 1
        inputs = x.ndim - outputs
        return MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, x.ndim)))

    return jax.tree.map_with_path(find, params)


OPTIMIZERS = {
    "adam": Adam,
    "adamw": AdamW,
    "adafactor": Adafactor,
    "sgd": SGD,
    "muon": Muon,
}
# Their updates use parameters only for the weight decay, so that factors of the parameters scale the decay.
WITH_WEIGHT_DECAY = (AdamW, SGD, Muon)


def find_optimizer(name: str) -> type[OptimizerConfig]:
    """Returns the config class of an optimizer.

    Args:
      name: a key of `OPTIMIZERS`, or "package.module:Class".

    Raises:
      UserError: if the optimizer does not exist.
    """
    return find_by_name(OPTIMIZERS, name, "config.training.optimizer.name", needs=("make",))


def make_optimizer(
    config: OptimizerConfig,
    schedule: Schedule,
    clip_norm: float | None = None,
    rate_factors: Factors = (),
    decay_factors: Factors = (),
) -> optax.GradientTransformation:
    """Makes the optimizer of one update.

    Args:
      config: the section `training.optimizer`, or the optimizer of a `tfm.training.task.Update`.
      schedule: the learning rate as a function of the number of earlier updates.
      clip_norm: gradients with a larger global norm are scaled down to this norm; None never scales them.
      rate_factors, decay_factors: factors of the learning rate and of the weight decay of parameters by the
        patterns of their paths, see `parse_factors`. () leaves all as they are.

    Raises:
      UserError: if there are factors of the weight decay of an optimizer that is not in `WITH_WEIGHT_DECAY`.
    """
    if decay_factors and not isinstance(config, WITH_WEIGHT_DECAY):
        raise UserError(
            "Expected adamw, sgd or muon as training.optimizer.name for training.weight_decay_factors, got "
            f"{config.name!r}. Choose another optimizer, or remove the factors."
        )
    optimizer = config.make(schedule)
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)

    def update(gradients, state, params=None, **extra):
        gradients, _ = clip.update(gradients, clip.init(params), params)
        decaying = _scale(params, decay_factors)
        updates, state = optimizer.update(gradients, state, decaying, **extra)
        return _scale(updates, rate_factors), state

    # Clipping and factors add no state, so that their fields may change when a run resumes.
    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def parse_factors(name: str, entries: Sequence[str]) -> Factors:
    """Returns (pattern, factor) of each entry "PATTERN=FACTOR". The first pattern that matches a path counts.

    Args:
      name: the field, for error messages.
      entries: its value.

    Raises:
      UserError: if an entry has the wrong form, or a factor is not finite or below 0.
    """
    factors = []
    for entry in entries:
        pattern, _, text = entry.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not pattern or not 0 <= factor < math.inf:
            raise UserError(
                f"Expected each of training.{name} to be PATTERN=FACTOR with a factor of at least 0, such as "
                f"encoder/*=0.1, got {entry!r}."
            )
        factors.append((pattern, factor))
    return tuple(factors)


def _scale(tree: Any, factors: Factors) -> Any:
    """Multiplies each leaf by the factor of the first pattern that matches its path."""

    def scale(path, x):
        factor = _find_factor(join_path(path), factors)
        return x if factor is None else factor * x

    return jax.tree_util.tree_map_with_path(scale, tree)


def _find_factor(path: str, factors: Factors) -> float | None:
    """Returns the factor of the first pattern that matches a path, or None."""
    return next((factor for pattern, factor in factors if match([pattern])(path)), None)


def find_shared_factor(paths: Iterable[str], factors: Factors) -> float:
    """Returns the factor that all paths have, or 1 if their factors differ or there are no paths."""
    shared = {_find_factor(path, factors) for path in paths}
    factor = shared.pop() if len(shared) == 1 else None
    return 1.0 if factor is None else factor


def make_schedule(config: "TrainingConfig", d_model: int | None) -> Schedule:
    """Returns the learning rate as a function of the number of completed updates.

    Args:
      config: the training section. Only `schedule`, `steps`, `warmup_steps`, `peak_learning_rate` and
        `learning_rate_scale` are read.
      d_model: model width for the paper's peak, or None if the model has no width.

    Raises:
      UserError: if both `peak_learning_rate` and `d_model` are None.
      ValueError: if `warmup_steps` is above `steps` with a schedule in `DECAYING`.
    """
    peak = find_peak(config, d_model)
    if config.schedule == "inverse_sqrt" and config.peak_learning_rate is None and d_model is not None:
        return schedules.inverse_sqrt(d_model, config.warmup_steps, config.learning_rate_scale)
    if config.schedule == "inverse_sqrt":
        return schedules.inverse_sqrt(1, config.warmup_steps, peak * config.warmup_steps**0.5)
    if config.schedule == "linear_decay":
        return schedules.linear_decay(peak, config.warmup_steps, config.steps)
    if config.schedule == "cosine_decay":
        return schedules.cosine_decay(peak, config.warmup_steps, config.steps)
    return schedules.constant(peak, config.warmup_steps)


def find_peak(config: "TrainingConfig", d_model: int | None) -> float:
    """Returns the largest learning rate, multiplied by `learning_rate_scale`.

    The largest rate is `peak_learning_rate`, or if it is None, the peak of equation 3 of the paper.

    Raises:
      UserError: if both `peak_learning_rate` and `d_model` are None.
    """
    if config.peak_learning_rate is not None:
        return config.learning_rate_scale * config.peak_learning_rate
    if d_model is None:
        raise UserError(
            "Expected training.peak_learning_rate to be a number, got None. The paper's rule needs d_model, "
            "but this model has none. Give the peak, for example "
            "--config.training.peak_learning_rate=0.001."
        )
    return config.learning_rate_scale * (d_model * config.warmup_steps) ** -0.5


def warn_of_large_peak(config: "TrainingConfig", d_model: int | None) -> None:
    """Logs a warning if the paper's rule gives a peak above `LARGE_PEAK`, at which most models do not learn.

    Raises:
      UserError: see `find_peak`.
    """
    peak = find_peak(config, d_model)
    if config.peak_learning_rate is None and peak > LARGE_PEAK:
        log.warning(
            "The learning rate rises to %.2g, the peak of the paper's rule for d_model %s and "
            "training.warmup_steps %s. Most models do not learn at such a rate. Set "
            "training.peak_learning_rate, such as 0.001.",
            peak,
            d_model,
            config.warmup_steps,
        )


def decay_mask(not_decayed: tuple[str, ...]) -> Callable[[Any], Any]:
    """Returns a function from parameters to a tree of booleans, True where weight decay applies."""
    is_left_out = match(not_decayed)
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: not is_left_out(join_path(path)), params
    )


def match(patterns: Iterable[str], excluded: Iterable[str] = ()) -> Callable[[str], bool]:
    """Returns a function of a path: whether a pattern matches it and no excluded pattern does.

    The patterns are case-sensitive patterns of `fnmatch`, in which `*` also matches slashes.
    """

    def is_wanted(path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, each) for each in patterns) and not any(
            fnmatch.fnmatchcase(path, each) for each in excluded
        )

    return is_wanted


def check_patterns(owner: str, patterns: Iterable[str], paths: Sequence[str]) -> None:
    """Checks that each pattern matches a path.

    Raises:
      UserError: if a pattern of `owner` matches no parameter.
    """
    for pattern in patterns:
        if not any(map(match([pattern]), paths)):
            raise UserError(
                f"Expected each pattern of {owner} to match a parameter, but {pattern!r} matches none; one "
                f"of the paths is {paths[0]!r}."
            )
