"""The file of scores that `tfm evaluate` writes, and that other commands read."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.io.files import atomic_file, read_limited

SUFFIX = ".scores.json"
MAX_BYTES = 1 << 24
# Errors of reading a file, parsing JSON, looking up fields and converting their values.
READ_ERRORS = (OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class EvaluationRecord(NamedTuple):
    """The scores of an evaluation, with everything that they depend on.

    Attributes:
      split: name of the split that was evaluated, without its folder.
      texts: hash of the texts of the split. Only evaluations on the same texts are comparable.
      checkpoint: the requested checkpoint: "best", "last" or a step. "" for an export.
      checkpoints: steps of the checkpoints that were evaluated.
      ensemble: whether these checkpoints form an ensemble instead of a mean.
      decoding: the settings of the search.
      data: fields of the data section that was read.
      sentences: number of examples.
      sentences_per_second: speed, including compilation.
      scores: the scores.
      scores_of_the_last_checkpoint_alone: scores without averaging. [] if nothing was averaged.
      complete: whether all scores were measured. False while the evaluation continues, or if it was stopped.
    """

    split: str
    texts: str
    checkpoint: str
    checkpoints: list[int]
    ensemble: bool
    decoding: dict[str, Any]
    data: dict[str, Any]
    sentences: int
    sentences_per_second: float
    scores: list[Score]
    scores_of_the_last_checkpoint_alone: list[Score]
    complete: bool

    def write(self, path: str) -> None:
        """Writes the record as JSON. The file is complete or does not change.

        Raises:
          UserError: if an I/O error occurs.
        """
        content = self._asdict()
        for name in ("scores", "scores_of_the_last_checkpoint_alone"):
            content[name] = [score._asdict() for score in content[name]]
        with atomic_file(path, "w") as file:
            json.dump(content, file, indent=2)


def read_record(path: str) -> EvaluationRecord:
    """Reads the record that `EvaluationRecord.write` wrote.

    Raises:
      UserError: if there is no such file, or its content is not a record.
    """
    try:
        content = json.loads(read_limited(path, MAX_BYTES))
        return EvaluationRecord(
            split=str(content["split"]),
            texts=str(content["texts"]),
            checkpoint=str(content["checkpoint"]),
            checkpoints=[int(step) for step in content["checkpoints"]],
            ensemble=bool(content["ensemble"]),
            decoding=dict(content["decoding"]),
            data=dict(content["data"]),
            sentences=int(content["sentences"]),
            sentences_per_second=float(content["sentences_per_second"]),
            scores=list(map(Score.read, content["scores"])),
            scores_of_the_last_checkpoint_alone=list(
                map(Score.read, content["scores_of_the_last_checkpoint_alone"])
            ),
            complete=bool(content["complete"]),
        )
    except UserError:  # the file is too large
        raise
    except READ_ERRORS as error:
        raise UserError(
            f"{path} is not a record of tfm evaluate ({type(error).__name__}: {error}). Evaluate again, or "
            "move the file away."
        ) from None


def read_evaluations(folder: str) -> Iterator[tuple[str, EvaluationRecord]]:
    """Yields (name, record) of each evaluation in a folder. Skips files that cannot be read."""
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIX):
            with contextlib.suppress(UserError):
                yield name.removesuffix(SUFFIX), read_record(os.path.join(folder, name))
