"""Records of evaluations in the folders of runs."""

import os
from typing import Any

from tfm.evaluation.score import Score
from tfm.workdir.evaluations import EvaluationRecord

RECORD = EvaluationRecord(
    split="test",
    texts="456",
    checkpoint="last",
    checkpoints=[6],
    ensemble=False,
    decoding={"beam_size": 4, "length_penalty": 0.6},
    data={},
    sentences=1014,
    sentences_per_second=3.0,
    scores=[Score("BLEU", 25.8, "tok:13a")],
    scores_of_the_last_checkpoint_alone=[],
    complete=True,
)


def write_record(path: str | os.PathLike, **fields: Any) -> EvaluationRecord:
    """Writes `RECORD` with changed fields to a path and returns the record."""
    record = RECORD._replace(**{"split": "validation", **fields})
    record.write(os.fspath(path))
    return record
