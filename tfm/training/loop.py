"""The training loop: batches in, checkpoints and metrics out. Knows no model and no task by name."""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from tfm.training.checkpoints import Checkpoints
from tfm.training.optimizer import make_optimizer, make_schedule
from tfm.training.parallel import Layout, make_layout
from tfm.training.record import record_start
from tfm.training.reporting import Progress, make_reporter
from tfm.training.signals import Asked, Stop
from tfm.training.step import TrainState, make_train_step
from tfm.training.trouble import explain
from tfm.training.watch import Reading, Watch, first_loss

CHECKPOINT_FOLDER = "checkpoints"
log = logging.getLogger(__name__)


def train(task, config, workdir, stop=None):
    """Trains up to `config.steps`; a run that was stopped goes on from its newest checkpoint.

    Args:
      task: has `init(rng)`, `loss(params, batch, rng)`, `prepare()`, `train_batches(start_step)`,
        `describe_batch(step)`, `count_tokens(batch)`, `evaluate(params)`, `identity()`, `config`, `d_model`
        and `best_metric`, as `tasks.translation` has.
      config: a `TrainingConfig`.
      workdir: folder of the run.
      stop: a `signals.Stop` that may ask the run to end; None for none.

    Raises:
      SystemExit: 128 + the signal's number, after a run that was asked to end has saved its state.
      UserError: the checkpoint there is of another model, the data cannot be used, or a step is not finite.
    """
    began = time.monotonic()
    stop = stop or Stop()
    parts = assemble(task, config)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(contextlib.closing(open_checkpoints(task, config, workdir)))
        state = parts.state
        if checkpoints.latest() is not None:
            state = checkpoints.restore(parts.layout.like(state))
            log.info("Going on from step %s in %s", f"{int(state.step):,}", workdir)
        if int(state.step) >= config.steps:
            log.info("Nothing to do: this run has made its %s steps", f"{config.steps:,}")
            return
        task.prepare()
        record_start(workdir, task, int(state.step))
        parameters = sum(x.size for x in jax.tree.leaves(state.params))
        devices = f"{parts.layout.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{parameters:,}", devices)
        reporter = stack.enter_context(contextlib.closing(make_reporter(workdir)))
        progress = Progress(int(state.step), config.steps, parts.schedule)
        trouble = functools.partial(explain, task, config, parts, workdir)
        reading = Reading(Watch(config, first_loss(workdir)), progress, task.count_tokens, trouble)
        with stop.deferred():
            step, signal = _run(task, config, parts, state, checkpoints, reporter, reading, began, stop)
            checkpoints.wait()
        if step < config.steps:
            log.info("Saved step %s: the same command goes on from there", f"{step:,}")
            raise SystemExit(128 + signal)


class Parts(NamedTuple):
    """What a run is made of before it has data: schedule, layout, first state, step to compile, its key."""

    schedule: Callable
    layout: Layout
    state: TrainState
    step: Callable
    rng: jax.Array


def assemble(task, config):
    """The `Parts` of a run."""
    schedule = make_schedule(config, task.d_model)
    optimizer = make_optimizer(config, schedule)
    init_rng, step_rng = jax.random.split(jax.random.key(config.seed))
    layout = make_layout(config)
    state = jax.jit(lambda rng: TrainState.create(task.init(rng), optimizer, config.ema_decay))(init_rng)
    step = make_train_step(
        task.loss, optimizer, step_rng, config.ema_decay, config.micro_batches, config.on_non_finite
    )
    return Parts(schedule, layout, state, step, step_rng)


def open_checkpoints(task, config, workdir):
    """The checkpoints of a run, as training and evaluation find them."""
    folder = os.path.join(workdir, CHECKPOINT_FOLDER)
    return Checkpoints(folder, best_metric=task.best_metric, keep=config.keep)


def _run(task, config, parts, state, checkpoints, reporter, reading, began, stop):
    """From the state's step to the last, or to where `stop` asks to end: (step, signal's number or 0)."""
    layout, start, progress = parts.layout, int(state.step), reading.progress
    train_step = layout.compile(parts.step, parts.state)
    state = layout.place_state(state)
    batches, asked = task.train_batches(start), Asked(stop)
    for step in range(start + 1, config.steps + 1):
        batch = next(batches)
        state, metrics = train_step(state, layout.place_batch(batch))
        reading.read(state)
        reading.put(step, batch, layout.fetch_metrics(metrics))
        if step == start + 1:
            jax.block_until_ready(metrics)
            log.info("First step finished after %.1f s", time.monotonic() - began)
        last, signal = step == config.steps, asked()
        logs = last or step % config.log_every == 0
        evaluates = last or step % config.eval_every == 0
        saves = evaluates or signal or step % config.checkpoint_every == 0
        if logs or saves:
            reading.read(state)
        if logs:
            reporter.write(step, progress.report(step))
        if saves:
            with progress.paused():
                whole = layout.fetch_state(state)
                weights = layout.fetch_weights(whole.weights) if evaluates else None
                scores = _evaluate(task, weights, reporter, step) if evaluates else None
                checkpoints.save(whole, scores)
        if signal:
            break
    return step, signal


def _evaluate(task, params, reporter, step):
    began = time.monotonic()
    scores = task.evaluate(params)
    reporter.write(step, scores)
    shown = "  ".join(f"{name.removeprefix('validation/')} {value:.4g}" for name, value in scores.items())
    log.info("validation at step %s: %s  (%.0f s)", f"{step:,}", shown, time.monotonic() - began)
    return scores
