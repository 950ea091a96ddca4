"""The finished runs of a sweep, read from their folders, and the reports that are made of them.

The folders of the runs are the only memory of a sweep. `table.md` is a report for people. The sweep writes it
again after each run and never reads it.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from tfm.checkpoints.retention import rank
from tfm.checkpoints.store import list_steps
from tfm.config import changes
from tfm.errors import UserError
from tfm.io.files import atomic_file, last_part
from tfm.sweep.plan import PlannedRun, count_parameters
from tfm.sweep.table import Row, make_table
from tfm.sweep.variants import PARAMETERS, TABLE_FILE, Variant
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir import runs
from tfm.workdir.evaluations import SUFFIX, EvaluationRecord, read_record
from tfm.workdir.status import has_ended, open_scores

DIGEST_CHARACTERS = 8  # of the hash in the name of an evaluation


class Requested(NamedTuple):
    """The evaluation that a sweep makes of each run.

    Attributes:
      split: name or path of the split.
      checkpoint: "last" or "best".
    """

    split: str
    checkpoint: str

    @property
    def name(self) -> str:
        """The name of the evaluation, or "" for the name of the split.

        The split of a path gets a separate name, because splits of several folders may have the same name.
        """
        base = last_part(self.split)
        if base == self.split:
            return ""
        return f"{base}-{hashlib.sha256(self.split.encode()).hexdigest()[:DIGEST_CHARACTERS]}"

    def path(self, run: PlannedRun) -> str:
        """Returns the path of the record of this evaluation in the folder of a run."""
        return runs.evaluation_stem(run.workdir, self.split, run.config.output_suffix, self.name) + SUFFIX


@dataclasses.dataclass(frozen=True)
class Result:
    """A finished run: its plan, and the record of its evaluation."""

    run: PlannedRun
    record: EvaluationRecord

    @functools.cached_property
    def scores(self) -> dict[str, float]:
        """{name of a score: value}."""
        return {score.name: score.value for score in self.record.scores}


def find_result(run: PlannedRun, requested: Requested) -> Result | None:
    """Returns the result of a run, or None if the run is not trained and evaluated to the end as requested.

    Raises:
      UserError: if the record of the evaluation cannot be read.
    """
    path = requested.path(run)
    if not os.path.exists(path):
        return None
    record = read_record(path)
    steps = list_steps(os.path.join(run.workdir, CHECKPOINT_FOLDER))
    is_trained = not steps or has_ended(run.config, max(steps), open_scores(run.config, run.workdir))
    is_finished = record.complete and is_trained and _is_current(record, run, requested, steps)
    return Result(run, record) if is_finished else None


def _is_current(
    record: EvaluationRecord, run: PlannedRun, requested: Requested, steps: Sequence[int]
) -> bool:
    """Returns whether a new evaluation of a run would have the same split, checkpoint and settings.

    `tfm evaluate` may have replaced the evaluation of the sweep, and the run may have been trained again.
    `steps` are the steps with a checkpoint. A user may have deleted all of them.
    """
    expected = getattr(run.config, "evaluation_settings", {})
    shared = expected.keys() & record.decoding.keys()
    is_same = record.split == last_part(requested.split) and len(record.checkpoints) == 1
    is_same &= all(record.decoding[name] == expected[name] for name in shared)
    if not steps:
        return is_same and record.checkpoint == requested.checkpoint
    scores = open_scores(run.config, run.workdir) if requested.checkpoint == "best" else None
    best_first = rank(scores.ranking(), steps) if scores else []
    return is_same and record.checkpoints == (best_first[:1] or [max(steps)])


def find_results(planned: Iterable[PlannedRun], requested: Requested, folder: str) -> list[Result]:
    """Returns the finished runs among the planned runs of a sweep's folder, in the order of the plan.

    Raises:
      UserError: if the configs of finished runs differ from the planned configs (the message lists all of
        them), or if the evaluated texts differ between runs.
    """
    results = [result for run in planned if (result := find_result(run, requested))]
    listed: list[str] = []
    for run in (result.run for result in results):
        if changed := changes(runs.open_folder(run.workdir).config, run.config):
            listed.append(f"{run.name} ({'; '.join(map(str, changed))})")
    if listed:
        raise UserError(
            f"{folder} has finished runs with other configs than the planned ones: {', '.join(listed)}. "
            "Give another --workdir, or the same config as before."
        )
    for result in results:
        if result.record.texts != results[0].record.texts:
            paths = [requested.path(run) for run in (result.run, results[0].run)]
            raise UserError(
                f"{result.run.name} was evaluated on other texts than {results[0].run.name}, and a table "
                f"cannot contain both. Delete {' or '.join(paths)}, and repeat the command, which evaluates "
                "the run again."
            )
    return results


def choose_scores(
    variants: Sequence[Variant], names: Sequence[str], results: Sequence[Result], config: Any
) -> list[str]:
    """Returns the names of the scores in the table.

    Args:
      variants: all variants of the sweep.
      names: the names of --score. Without names, the table has the published scores, or the first score of
        the results. Without both and without results, it has no score.
      results: the finished runs.
      config: config of the task. Its attribute `SCORES`, if it exists, has shell patterns of its scores.

    Raises:
      UserError: if a name of --score, or a name that a variant publishes, is no score of the task.
    """
    published = list(dict.fromkeys(name for variant in variants for name in variant.published))
    published = [name for name in published if name != PARAMETERS]
    known = list(results[0].scores) if results else list(getattr(config, "SCORES", ()))
    unknown = [
        name
        for name in [*names, *published]
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in known)
    ]
    if known and unknown:
        raise UserError(
            f"The task {config.task} has no score {unknown[0]!r}. Expected {', '.join(map(repr, known))} in "
            "--score and in `published` of the variants."
        )
    return list(names) or published or known[: bool(results)]


def write_table(
    folder: str, variants: Sequence[Variant], results: Sequence[Result], names: Sequence[str], title: str
) -> str:
    """Writes the table of the finished runs into table.md in the folder of the sweep. Returns its text.

    Args:
      folder: folder of the sweep.
      variants: all variants of the sweep. The first is the base of the table.
      results: the finished runs.
      names: names of the scores in the table.
      title: first line of the table.

    Raises:
      UserError: if the file cannot be written.
    """
    rows = [
        Row(result.run.variant.name, result.run.seed, result.scores, count_parameters(result.run.config))
        for result in results
    ]
    table = f"{title}\n\n{make_table(variants, rows, names)}"
    with atomic_file(os.path.join(folder, TABLE_FILE), "w") as file:
        file.write(table)
    return table
