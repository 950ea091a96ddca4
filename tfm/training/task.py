"""The contract between training and a task.

`config.task` names a module of `tfm.tasks`, or a module of your own. The module defines

    Config                                the frozen dataclass of a run with the sections `model` (which has
                                          a `name`), `data` and `training`,
                                          `without_paths()` (a copy without paths of this machine) and
                                          `output_suffix` (the end of the names of output files)
    create(config, workdir, *, new=True)  returns the `Task` of a run; a new run first writes its assets
    plan(config)                          optional: returns the `Task` before it has assets, for early checks
    fingerprint(config, split)            optional: returns the fingerprint of a split's content

A batch is a dict of NumPy arrays whose first axis is the rows. Training pads a batch with rows of zeros, so
that its rows divide evenly over devices and micro-batches. A loss must not count such a row. The batches of
a run may differ in their shapes and in the names of their arrays: the step is compiled once for each form.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import flax.struct
import jax
import numpy as np

from tfm.devices.memory import check_depth
from tfm.devices.rows import make_device_key
from tfm.errors import UserError

if TYPE_CHECKING:
    from tfm.training.config import TrainingConfig

Batch = Mapping[str, np.ndarray]
Variables = Mapping[str, Any]  # {"params": tree, other collection: tree}, as Flax has them
SumAndCount = tuple[jax.Array, jax.Array]


class Context(flax.struct.PyTreeNode):
    """Everything that a loss may use apart from variables and batch.

    Attributes:
      step: int32 scalar, number of completed steps. It is traced, so a loss can anneal a weight with it.
      rng: random key of dropout; None in evaluation. All devices share it; see `row_rng`.
      constants: the arrays of `Task.constants`, such as the variables of a teacher, in training and in
        `tfm.training.loss_calls.mean_metrics`.
      row_axes: names of the axes over which the rows of the batch are divided. A statistic over all rows is
        `jax.lax.psum(local_sum, context.row_axes)`. Without axes, `psum` returns its argument.
    """

    step: jax.Array | int = 0
    rng: jax.Array | None = None
    constants: Any = None
    row_axes: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    @property
    def train(self) -> bool:
        """True in training: dropout is on and the state is updated."""
        return self.rng is not None

    @property
    def row_rng(self) -> jax.Array:
        """The random key for noise of rows. It differs between devices with different rows."""
        if self.rng is None:
            raise ValueError("Expected a random key, but an evaluation has none. Check context.train first.")
        return make_device_key(self.rng)


class LossOutput(NamedTuple):
    """The output of a loss. All numbers are sums over the rows of the batch that the loss was given.

    Attributes:
      terms: {name: (sum, count)}. A step descends the sum over all terms of total sum / total count, where
        the totals are over all rows of the step. Counts are constants to the gradient.
      metrics: {name: (sum, count)} of further numbers to report.
      state: {collection: tree} of the collections that changed, such as {"batch_stats": tree}. The counted
        rows of all devices contribute: floats become the mean over devices, integers the largest value.
        Training moves the collection of `tfm.layers.loss_terms` to the terms.
    """

    terms: Mapping[str, SumAndCount]
    metrics: Mapping[str, SumAndCount] = {}
    state: Mapping[str, Any] = {}


Loss = Callable[[Variables, Batch, Context], LossOutput]


class RunConfig(Protocol):
    """The config of a run: the frozen dataclass `Config` of a task, see the module's docstring."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def task(self) -> str:
        """The name by which `tfm.tasks.find` finds the task."""
        ...

    @property
    def model(self) -> Any:
        """The config of the model, which has a `name`."""
        ...

    @property
    def data(self) -> Any:
        """The section of the data."""
        ...

    @property
    def training(self) -> "TrainingConfig":
        """The section of the training."""
        ...

    @property
    def output_suffix(self) -> str:
        """The end of the names of output files."""
        ...

    def without_paths(self) -> Any:
        """Returns a copy without paths of this machine."""
        ...


class Update(NamedTuple):
    """One update within a step. The updates of a step run in order, each after the changes of the one before.

    Attributes:
      name: names the optimizer state in checkpoints and, if there are several updates, the metrics.
      loss: the loss that the update descends.
      parameters: shell patterns of the paths of the parameters that it trains, such as "discriminator/*". Two
        updates cannot train the same parameter.
      optimizer: an optimizer config such as `tfm.training.optimizers.Adam`; None is
        `config.training.optimizer`.
      schedule: learning rate as a function of the number of earlier updates; None is the schedule of
        `config.training`.
      every: interval of this update in steps. The first step makes the update.
    """

    name: str
    loss: Loss
    parameters: tuple[str, ...] = ("*",)
    optimizer: Any = None
    schedule: Callable[[Any], Any] | None = None
    every: int = 1


class Best(NamedTuple):
    """The metric of `Task.evaluate` that selects the best checkpoint, and whether more or less is better.

    Without a metric, "", no checkpoint is the best.
    """

    metric: str
    order: Literal["max", "min"] = "max"


class Report(NamedTuple):
    """The outputs of a trained model on a split, and their scores.

    Attributes:
      outputs: a line of text for each example, in the order of the split.
      scores: objects with the attributes `name`, `value` and `signature`.
      examples: texts to print of each example, in the same order, such as
        {"source": text, "hypothesis": text}.
      settings: values on which the outputs depend besides the parameters, such as the beam size.
      rate: examples per second, including compilation.
      identity: hash of the inputs and references of the split. Only scores with the same hash are compared.
    """

    outputs: list[str]
    scores: list[Any]
    examples: list[dict[str, str]]
    settings: dict[str, Any]
    rate: float
    identity: str


class Samples(NamedTuple):
    """Outputs for a few examples. Each evaluation shows the same examples.

    Attributes:
      rows: texts of each example, such as {"source": text, "hypothesis": text}, all with the same names.
      pictures: {name: function that writes a PNG file to a path}. Only the first host calls it.
    """

    rows: list[dict[str, str]]
    pictures: dict[str, Callable[[str], None]]


class Data(Protocol):
    """The opened and prepared data of a run. Subclasses inherit the defaults of the last three methods."""

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Yields batches of this host without end, from `start_step`. They depend only on seed and step."""
        ...

    def identity(self) -> dict[str, str]:
        """Returns {name: fingerprint} of the data and of what prepared the data."""
        ...

    def count(self, batch: Batch) -> int:
        """Returns the size of a batch of this host in the task's `unit`, without padding."""
        ...

    def example(self) -> Batch:
        """Returns a batch of the largest shape with all arrays that a batch may have, to compile the step."""
        return next(iter(self.train_batches(0)))

    def describe_batch(self, step: int) -> dict[str, Any]:
        """Returns what identifies the batch of `step`, counted from 0, in the data."""
        return {"step": step}

    def describe(self, parameters: int) -> list[tuple[str, str]]:
        """Returns (name, text) of the lines of the dry run. A line of advice has the name "warning"."""
        return []


class Evaluation(NamedTuple):
    """The scores of the validation split, {"validation/...": value}, and samples to show, if any."""

    scores: dict[str, float]
    samples: Samples | None = None


class Task:
    """A loss over batches and the evaluation of what it trained. Subclasses inherit the defaults.

    Attributes:
      config: the `Config` of the run.
      best: which evaluation is the best.
      validation_scores: names of all scores of `evaluate`, so that a misspelt name is reported before the
        first step. () means that they are unknown until the first evaluation.
      validation_loss: name of the score of `evaluate` that falls while a model learns. Early stopping waits
        for it, too, because a score of outputs can be 0 for a long time. "" if no score is a loss.
      unit: what `Data.count` counts, such as "tokens" or "images".
      averages_models: whether `report` also takes a tuple of the variables of several models, whose
        probabilities it averages (`tfm evaluate --ensemble=N`).
      d_model: width of the model, for the peak of the paper's schedule; None if it has no width.
      model: the Linen module, for functions that apply it; None if there is no single module.
    """

    config: Any
    best: Best
    unit: str
    validation_scores: tuple[str, ...] = ()
    validation_loss: str = ""
    averages_models: bool = False
    d_model: int | None = None
    model: Any = None

    def init(self, rng: jax.Array) -> Variables:
        """Returns random variables: the trained "params", and other collections, the state."""
        raise NotImplementedError

    def loss(self, variables: Variables, batch: Batch, context: Context) -> LossOutput:
        """Computes the loss of a batch, for training and for validation."""
        raise NotImplementedError

    def updates(self) -> Sequence[Update]:
        """Returns the updates of a step. The default trains all parameters on `loss`."""
        return (Update("loss", self.loss),)

    def constants(self) -> Any:
        """Returns a tree of arrays that losses use and nothing trains, such as the variables of a teacher.

        They are placed like parameters. Checkpoints hold their fingerprint instead of a copy.
        """
        return None

    def open_data(self) -> Data:
        """Opens and prepares training and validation data."""
        raise NotImplementedError

    def evaluate(self, variables: Variables, data: Data) -> Evaluation:
        """Scores the validation split; `best.metric` is among the scores."""
        raise NotImplementedError

    def report(self, variables: Any, split: str) -> Iterator[Report]:
        """Yields one or more complete reports of a split, for `tfm evaluate`.

        Each report replaces the report before it. A task with slow measurements first yields a report without
        them, so that the scores are written early.

        Args:
          variables: variables of the model. Tasks with `averages_models` also get a tuple with the variables
            of each model of an ensemble.
          split: name of the split.
        """
        raise NotImplementedError

    def assets(self) -> dict[str, str]:
        """Returns {file name: fingerprint} of the files in the run folder that the parameters depend on."""
        return {}


def parameters_of(variables: Any) -> Any:
    """Returns the parameters among variables, or a tuple of the parameters of an ensemble's members."""
    if isinstance(variables, tuple):
        return tuple(member["params"] for member in variables)
    return variables["params"]


def variable_shapes(task: Task) -> Variables:
    """Returns the shapes of a task's variables. Nothing is allocated.

    Raises:
      UserError: if the config has more layers than the memory of the host can compile.
    """
    check_depth(task.config)
    return jax.eval_shape(lambda: task.init(jax.random.key(0)))


# Methods without a default.
REQUIRED = {
    Task: ("init", "loss", "open_data", "evaluate", "report"),
    Data: ("train_batches", "identity", "count"),
}


def check_contract(instance: Any, contract: type[object]) -> None:
    """Checks that a task has all members of the contract `Task`, or its data all members of `Data`.

    Raises:
      UserError: if a member is missing.
    """
    names = [name for name in {**contract.__annotations__, **vars(contract)} if not name.startswith("_")]
    missing = [name for name in names if not hasattr(instance, name)]
    methods = {name: getattr(getattr(instance, name, None), "__func__", None) for name in REQUIRED[contract]}
    missing += [name for name, method in methods.items() if method is getattr(contract, name)]
    if missing:
        owner = f"{type(instance).__module__}.{type(instance).__qualname__}"
        raise UserError(
            f"Expected {owner} to have all members of tfm.training.task.{contract.__name__}, but it lacks "
            f"{', '.join(missing)}. Define what is missing."
        )
