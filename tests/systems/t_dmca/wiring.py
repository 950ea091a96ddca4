"""Observers of the config sections of summarization, and the cases of the config of T-DMCA."""

from tests.tasks import wiring_language_modeling as lm
from tests.wiring.case import Case, Observation, make_cases
from tests.wiring.folder import OTHER_SPLITS, OTHER_TFDS, TABLE, TFDS
from tests.wiring.observers import VOCABULARY, observe_loss
from tfm.systems.t_dmca import task as summarization
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.systems.t_dmca.summaries import SummariesConfig

MODEL = TDMCAConfig(layers=1, d_model=8, d_ff=12, heads=2, max_positions=32, local_block=2, compression=2)
SUMMARIES = SummariesConfig(
    kind="text",
    feature="en",
    summary_column="de",
    directory="corpus",
    row_length=16,
    batch_tokens=64,
    cache_dir="cache",
)
ENDING_IN_SUMMARIES = SummariesConfig(**vars(lm.DOCUMENTS) | {"before_summary": " "})


class RecordingSummarization(lm.RecordsWindows, summarization.Summarization):
    """Summarization whose model is replaced."""


def observe_run(config: summarization.Config) -> Observation:
    """See `tests.tasks.wiring_language_modeling.observe_recorded_run`."""
    return lm.observe_recorded_run(config, RecordingSummarization)


def observe_summaries(data: SummariesConfig) -> Observation:
    """Observes a run with this data section."""
    return observe_run(summarization.Config(model=lm.MODEL, data=data, stride=8))


def observe_summarization(config: summarization.Config) -> Observation:
    """Traces the initialization and the loss."""
    return observe_loss(summarization.Summarization(config, VOCABULARY), lm.BATCH)


CONFIG = summarization.Config(data=SUMMARIES, **lm.FIELDS)
CASES = [
    *make_cases(
        MODEL,
        lm.observe_model,
        {"norm_order": "post"},  # required by deep_norm
        {"positions": "interleaved"},
        {"attention_dropout": 0.0},
        {"positions": "learned"},
        {"pattern": "M"},
    ),
    *make_cases(SUMMARIES, observe_summaries, TABLE, lm.WORD_PIECES),
    Case(ENDING_IN_SUMMARIES, observe_summaries),
    Case(SummariesConfig(kind="tfds", name=TFDS, directory="tfds"), lm.observe_stored_documents),
    Case(CONFIG, observe_summarization),
    Case(CONFIG, observe_run),
]
VALUES = {
    TDMCAConfig: {"pattern": "ML"},
    SummariesConfig: {
        "kind": "table",
        "name": OTHER_TFDS,
        "directory": "elsewhere",
        "feature": "fr",
        "summary_column": "fr",
        "before_summary": "a",
        "separator": "a",
        "tokenizer": "characters",
        "cache_dir": "other_cache",
    }
    | OTHER_SPLITS,
}
