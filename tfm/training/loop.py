"""The training loop: batches in, checkpoints and metrics out. Knows no model and no task by name."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from tfm.training.checkpoints import Checkpoints
from tfm.training.memory import check_memory, enough_memory, memory_of
from tfm.training.optimizer import make_optimizer, make_schedule
from tfm.training.parallel import Layout, make_layout
from tfm.training.reporting import Progress, make_reporter
from tfm.training.restoring import check_shapes
from tfm.training.step import TrainState, make_train_step
from tfm.training.stopping import Evaluations

CHECKPOINT_FOLDER = "checkpoints"
log = logging.getLogger(__name__)


def train(task, config, workdir, first_weights=None):
    """Trains up to `config.steps`; a run that was stopped goes on from its newest intact checkpoint.

    Args:
      task: has `init(rng)`, `loss(params, batch, rng)`, `prepare()`, `plan()`, `train_batches(start_step)`,
        `count_tokens(batch)`, `evaluate(params)`, `d_model` and `best_metric`, as `tasks.translation` has.
      config: a `TrainingConfig`.
      workdir: folder of the run.
      first_weights: function without arguments that gives the parameters to begin with; None draws them. It
        is not called for a run that has a checkpoint.

    Raises:
      UserError: the checkpoint there is of another model, all are damaged, the data cannot be used, or a step
        needs more memory than a device has.
    """
    began = time.monotonic()
    parts = assemble(task, config)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(contextlib.closing(open_checkpoints(task, config, workdir)))
        state, carried = _first_state(parts, checkpoints, first_weights)
        if int(state.step) >= config.steps:
            log.info("Nothing to do: this run has made its %s steps", f"{config.steps:,}")
            return
        if carried.evaluations.exhausted(config.patience):
            log.info("Nothing to do: %s", _out_of_patience(carried.evaluations))
            return
        task.prepare()
        parameters = sum(x.size for x in jax.tree.leaves(state.params))
        devices = f"{parts.layout.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{parameters:,}", devices)
        reporter = stack.enter_context(contextlib.closing(make_reporter(workdir)))
        progress = Progress(int(state.step), config.steps, parts.schedule, carried.sums)
        _run(task, config, parts, state, carried.evaluations, checkpoints, reporter, progress, began)


class Carried(NamedTuple):
    """What a run carries from step to step beside its state.

    Attributes:
      sums: of the metrics since the last line, see `Progress`.
      evaluations: so far.
    """

    sums: dict
    evaluations: Evaluations

    @classmethod
    def of(cls, saved):
        """From what a checkpoint holds; one from before there was any holds {}."""
        return cls(saved.get("sums", {}), Evaluations(*saved.get("evaluations", ())))


def _first_state(parts, checkpoints, first_weights):
    """The state to go on from, and what is carried with it."""
    newest = checkpoints.recover()
    if newest is not None:
        log.info("Going on from step %s in %s", f"{newest:,}", checkpoints.directory)
        state = checkpoints.restore(parts.layout.like(parts.state), newest)
        return state, Carried.of(checkpoints.restore_progress(newest))
    state = parts.state
    if first_weights is not None:
        # Saved at once, so that the run goes on with these weights whenever it is stopped.
        weights = first_weights()
        check_shapes(state.params, weights, "What the run would begin with")
        state = state.begun_with(weights)
        checkpoints.save(parts.layout.fetch_state(parts.layout.place_state(state)))
    return state, Carried.of({})


class Parts(NamedTuple):
    """What a run is made of before it has data: schedule, layout, first state, and the step to compile."""

    schedule: Callable
    layout: Layout
    state: TrainState
    step: Callable


def assemble(task, config):
    """The `Parts` of a run."""
    schedule = make_schedule(config, task.d_model)
    optimizer = make_optimizer(config, schedule)
    init_rng, step_rng = jax.random.split(jax.random.key(config.seed))
    layout = make_layout(config)
    state = jax.jit(lambda rng: TrainState.create(task.init(rng), optimizer, config.ema_decay))(init_rng)
    step = make_train_step(task.loss, optimizer, step_rng, config.ema_decay, config.micro_batches)
    return Parts(schedule, layout, state, step)


def open_checkpoints(task, config, workdir):
    """The checkpoints of a run, as training and evaluation find them."""
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return Checkpoints(
        folder,
        best_metric=task.best_metric,
        keep=config.keep,
        keep_best=config.keep_best,
        keep_hours=config.keep_hours,
    )


def _run(task, config, parts, state, evaluations, checkpoints, reporter, progress, began):
    """From the state's step to the last. Metrics of a step are read once the next is dispatched."""
    layout, start = parts.layout, int(state.step)
    with enough_memory(config.micro_batches):
        train_step = layout.compile(parts.step, parts.state)
        state = layout.place_state(state)
        # The call of this shape finds what is compiled here; the largest first, lest it be too large later.
        compiled = train_step.lower(state, layout.place_batch(task.plan().largest)).compile()
    check_memory(memory_of(compiled), config.micro_batches)
    batches = task.train_batches(start)
    unread = None
    for step in range(start + 1, config.steps + 1):
        batch = next(batches)
        state, metrics = train_step(state, layout.place_batch(batch))
        if unread:
            progress.add(*unread)
        unread = (layout.fetch_metrics(metrics), task.count_tokens(batch) * jax.process_count())
        if step == start + 1:
            jax.block_until_ready(metrics)
            log.info("First step finished after %.1f s", time.monotonic() - began)
        last = step == config.steps
        if last or step % config.log_every == 0:
            progress.add(*unread)
            unread = None
            reporter.write(step, progress.report(step))
        evaluates = last or step % config.eval_every == 0
        if evaluates or step % config.checkpoint_every == 0:
            with progress.paused():
                whole = layout.fetch_state(state)
                weights = layout.fetch_weights(whole.weights) if evaluates else None
                scores = _evaluate(task, weights, reporter, step) if evaluates else None
                if evaluates and task.best_metric in scores:
                    evaluations = evaluations.after(scores[task.best_metric])
                if unread:  # the sums of a checkpoint are those of its steps, its own among them
                    progress.add(*unread)
                    unread = None
                checkpoints.save(whole, scores, Carried(dict(progress.sums), evaluations)._asdict())
        if evaluations.exhausted(config.patience):
            log.info("Stopping at step %s: %s", f"{step:,}", _out_of_patience(evaluations))
            return


def _out_of_patience(evaluations):
    return f"{evaluations.since_best} evaluations brought nothing better than {evaluations.best:.4g}"


def _evaluate(task, params, reporter, step):
    began = time.monotonic()
    scores = task.evaluate(params)
    reporter.write(step, scores)
    shown = "  ".join(f"{name.removeprefix('validation/')} {value:.4g}" for name, value in scores.items())
    log.info("validation at step %s: %s  (%.0f s)", f"{step:,}", shown, time.monotonic() - began)
    return scores
