"""The training loop: batches in, checkpoints and metrics out. Knows no model and no task by name."""

import contextlib
import logging
import time

import jax
import optax

from tfm.runtime.lock import HeldDirectory
from tfm.runtime.preemption import Asked, Interrupted, Stop
from tfm.runtime.provenance import record_start
from tfm.training.divergence import Reading, Watch, first_loss
from tfm.training.non_finite import explain
from tfm.training.reporting import Progress, make_reporter
from tfm.training.setup import Carried, assemble, compile_step, first_state, open_checkpoints

log = logging.getLogger(__name__)


def train(task, config, workdir, *, first_weights=None, stop=None, held=None):
    """Trains up to `config.steps`; a run that was stopped goes on from its newest intact checkpoint.

    Args:
      task: has `init(rng)`, `loss(params, batch, rng)`, `prepare()`, `plan()`, `train_batches(start_step)`,
        `describe_batch(step)`, `count_tokens(batch)`, `evaluate(params)`, `identity()`, `assets()`, `config`,
        `model`, `d_model` and `best_metric`, as `tasks.translation` has.
      config: a `TrainingConfig`.
      workdir: folder of the run.
      first_weights: function without arguments that gives the parameters to begin with; None draws them. It
        is not called for a run that has a checkpoint.
      stop: a `signals.Stop` that may ask the run to end; None for none.
      held: the `lock.HeldDirectory` of the work directory, where this process has locked it.

    Raises:
      SystemExit: 128 + the signal's number, after a run that was asked to end has saved its state.
      UserError: the checkpoint there is of another model or vocabulary, all are damaged, the data cannot be
        used, a step needs more memory than a device has, one is not finite, or the work directory was
        deleted, moved or replaced.
    """
    began = time.monotonic()
    stop = stop or Stop()
    parts = assemble(task, config)
    with contextlib.ExitStack() as stack:
        held = held or stack.enter_context(contextlib.closing(HeldDirectory(workdir)))
        checkpoints = open_checkpoints(task, config, workdir, held)
        stack.enter_context(contextlib.closing(checkpoints))
        state, carried = first_state(parts, checkpoints, first_weights)
        start = int(state.step)
        if start >= config.steps and not carried.unevaluated:
            log.info("Nothing to do: this run has made its %s steps", f"{config.steps:,}")
            return
        if carried.evaluations.exhausted(config.patience):
            log.info("Nothing to do: %s", carried.evaluations)
            return
        task.prepare()
        held.check()  # preparing may have taken long, and what follows makes files and folders
        record_start(workdir, task, start)
        parameters = sum(x.size for x in jax.tree.leaves(state.params))
        devices = f"{parts.layout.devices} {jax.default_backend()}"
        log.info("%s parameters, %s device(s)", f"{parameters:,}", devices)
        step, state, _ = compile_step(parts, state, task.plan().largest, config.micro_batches)
        held.check()
        reporter = stack.enter_context(contextlib.closing(make_reporter(workdir)))
        run = _Run(task, config, parts, carried, held, checkpoints, reporter, start)
        with stop.deferred():
            last, signal = run.go(step, state, Asked(stop), began)
            checkpoints.wait()
        if signal:
            log.info("Saved step %s: the same command goes on from there", f"{last:,}")
            raise SystemExit(128 + signal)


class _Run:
    """The steps of one process."""

    def __init__(self, task, config, parts, carried, held, checkpoints, reporter, start):
        self._task, self._config, self._parts, self._start = task, config, parts, start
        self._held, self._checkpoints, self._reporter = held, checkpoints, reporter
        self._progress = Progress(start, config.steps, parts.schedule, carried.sums)
        self._evaluations, self._unevaluated = carried.evaluations, carried.unevaluated
        self._norm = jax.jit(optax.tree.norm)
        watch = Watch(config, first_loss(held.path))
        self._reading = Reading(watch, self._progress, task.count_tokens, self._explain)

    def go(self, train_step, state, asked, began):
        """From the first step to the last, or to where it is asked or decides to end.

        Returns:
          (step, number of the signal that ended it before its time, or 0).
        """
        config, layout, reading = self._config, self._parts.layout, self._reading
        batches = self._task.train_batches(self._start)
        step, signal = self._start, 0
        if self._unevaluated:
            with self._progress.paused():
                self._save(step, layout.fetch_state(state), asked, evaluates=True)
        while step < config.steps and not (signal or self._unevaluated or self._exhausted):
            step += 1
            batch = next(batches)
            state, metrics = train_step(state, layout.place_batch(batch))
            reading.read(state)
            reading.put(step, batch, layout.fetch_metrics(metrics))
            if step == self._start + 1:
                jax.block_until_ready(metrics)
                log.info("First step finished after %.1f s", time.monotonic() - began)
            last, signal = step == config.steps, asked()
            evaluates = last or step % config.eval_every == 0
            if last or step % config.log_every == 0:
                reading.read(state)
                self._held.check()
                norm = self._norm(layout.fetch_state(state.params))
                row = self._progress.report(step) | {"train/parameter_norm": float(norm)}
                self._reporter.write(step, row)
            if evaluates or signal or step % config.checkpoint_every == 0:
                reading.read(state)  # the sums of a checkpoint are those of its steps, its own among them
                with self._progress.paused():
                    self._save(step, layout.fetch_state(state), asked, evaluates)
        if self._unevaluated:
            return step, asked()
        if self._exhausted:
            log.info("Stopping at step %s: %s", f"{step:,}", self._evaluations)
            return step, 0
        return step, signal if step < config.steps else 0

    @property
    def _exhausted(self):
        return self._evaluations.exhausted(self._config.patience)

    def _explain(self, state, step, batch):
        self._held.check()  # it makes a folder there
        return explain(self._task, self._config, self._parts, self._held.path, state, step, batch)

    def _save(self, step, state, asked, evaluates):
        scores = self._evaluate(step, state, asked) if evaluates else None
        again, self._unevaluated = self._unevaluated, evaluates and scores is None
        if again and self._unevaluated:
            return  # as it was saved
        if scores and self._task.best_metric in scores:
            self._evaluations = self._evaluations.after(scores[self._task.best_metric])
        carried = Carried(dict(self._progress.sums), self._evaluations, self._unevaluated)
        self._checkpoints.save(state, scores, carried._asdict(), again=again)

    def _evaluate(self, step, state, asked):
        """{name: score}, or None where a signal cut it short: it is made when the run goes on."""
        began = time.monotonic()
        try:
            with asked.interrupting():
                scores = self._task.evaluate(self._parts.layout.fetch_weights(state.weights))
        except Interrupted:
            log.info("validation at step %s was cut short; it is made when the run goes on", f"{step:,}")
            return None
        self._reporter.write(step, scores)
        shown = "  ".join(f"{name.removeprefix('validation/')} {value:.4g}" for name, value in scores.items())
        log.info("validation at step %s: %s  (%.0f s)", f"{step:,}", shown, time.monotonic() - began)
        return scores
