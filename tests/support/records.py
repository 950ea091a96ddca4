"""Records of evaluations in the folders of runs, with all fields that `tfm evaluate` writes."""

import dataclasses
import os
from typing import Any

from tfm.data.sources.opening import fingerprint_texts
from tfm.evaluation.score import Score
from tfm.tasks.translation.task import Config
from tfm.workdir.evaluations import EvaluationRecord

CONFIG = Config()
RECORD = EvaluationRecord(
    split="test",
    texts=fingerprint_texts(["red dog"], ["roter Hund"]),
    checkpoint="last",
    checkpoints=[6],
    ensemble=False,
    decoding=CONFIG.evaluation_settings,
    data=dataclasses.asdict(CONFIG.data),
    sentences=1014,
    sentences_per_second=3.0,
    scores=[Score("BLEU", 25.8, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0")],
    scores_of_the_last_checkpoint_alone=[],
    complete=True,
)


def write_record(path: str | os.PathLike, **fields: Any) -> EvaluationRecord:
    """Writes `RECORD` with changed fields to a path and returns the record."""
    record = RECORD._replace(**{"split": "validation", **fields})
    record.write(os.fspath(path))
    return record
