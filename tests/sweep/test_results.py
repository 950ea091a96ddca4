"""Tests of the results of a sweep, which are read from the folders of its runs."""

import dataclasses
import types

import pytest

from tests.support.records import write_record
from tests.support.sweeps import BASE, planned
from tests.support.tiny_lm import make_lm_config
from tfm import config
from tfm.errors import UserError
from tfm.sweep.results import Requested, choose_scores, find_result, find_results
from tfm.sweep.variants import Variant
from tfm.tasks import language_modeling
from tfm.training.scores import Scores
from tfm.training.task import Best

STEPS = BASE.training.steps
LAST = Requested("validation", "last")


@pytest.fixture
def make_run(tmp_path):
    """Returns a function that writes the folder of a finished run and returns its plan."""

    def make(variant="base", seed=0, saved=BASE, checkpoints=(STEPS,), **fields):
        folder = tmp_path / variant / f"seed_{seed}"
        folder.mkdir(parents=True)
        for step in checkpoints:
            (folder / "checkpoints" / str(step)).mkdir(parents=True)
        config.save(saved, str(folder / "config.json"))
        record = {"checkpoint": "last", "checkpoints": [STEPS], "split": "validation"}
        write_record(folder / "validation.de.scores.json", **record | fields)
        return planned(variant, seed)._replace(workdir=str(folder))

    return make


@pytest.mark.parametrize(
    ("fields", "finished"),
    [
        ({}, True),
        ({"checkpoints": ()}, True),  # a user may delete the checkpoints to save space
        ({"complete": False}, False),
        ({"checkpoints": (50_000,)}, False),
        ({"checkpoints": (50_000, STEPS), "evaluated": [50_000]}, False),
    ],
)
def test_run_is_finished_only_after_all_training_and_evaluation(fields, finished, make_run):
    steps, evaluated = fields.pop("checkpoints", (STEPS,)), fields.pop("evaluated", [STEPS])
    run = make_run(checkpoints=steps, **fields)
    write_record(f"{run.workdir}/validation.de.scores.json", checkpoints=evaluated, **fields)
    assert (find_result(run, LAST) is not None) == finished


def test_run_that_was_evaluated_with_other_decoding_settings_is_not_finished(make_run):
    settings = BASE.evaluation_settings
    assert find_result(make_run(decoding=settings), LAST) is not None
    assert find_result(make_run(seed=1, decoding=settings | {"beam_size": 1}), LAST) is None


def test_language_model_that_was_evaluated_with_another_stride_is_not_finished(make_run):
    base = language_modeling.Config(training=BASE.training)
    settings = base.evaluation_settings
    for seed, changed in enumerate([{}, {"stride": base.stride // 2}, {"rows": "packed"}]):
        run = make_run(seed=seed)._replace(config=base)
        write_record(LAST.path(run), checkpoints=[STEPS], decoding=settings | changed)
        assert (find_result(run, LAST) is not None) == (changed == {})


def test_splits_of_one_name_in_several_folders_have_different_records(make_run):
    run = make_run()
    paths = {Requested(split, "last").path(run) for split in ("test", "a/test", "b/test")}
    assert len(paths) == 3
    assert Requested("validation", "last").name == ""


def test_run_without_an_evaluation_of_the_split_is_not_finished(make_run):
    assert find_result(make_run(), Requested("test", "last")) is None


@pytest.fixture
def make_patient_run(make_run, tmp_path):
    """Returns a function that writes a run with a patience of 2 that has scores at some steps."""
    config = make_lm_config(tmp_path)
    training = dataclasses.replace(config.training, steps=100, eval_every=1, patience=2)
    config = dataclasses.replace(config, training=training)

    def make(scores, checkpoints, evaluated, checkpoint):
        run = make_run(checkpoints=checkpoints)._replace(config=config)
        written = Scores(run.workdir, Best("validation/bits_per_byte", "min"))
        for step, value in scores.items():
            names = ("bits_per_byte", "bits_per_character", "perplexity")
            written.add(step, {f"validation/{name}": value for name in names})
        path = Requested("validation", checkpoint).path(run)
        fields = {"checkpoints": [evaluated], "checkpoint": checkpoint}
        write_record(path, decoding=config.evaluation_settings, **fields)
        return run

    return make


@pytest.mark.parametrize(("last", "finished"), [(3.0, False), (5.0, True)])
def test_run_with_patience_is_finished_when_its_scores_stopped_improving(last, finished, make_patient_run):
    run = make_patient_run({1: 4.0, 2: 4.5, 3: last}, [3], evaluated=3, checkpoint="last")
    assert (find_result(run, LAST) is not None) == finished


@pytest.mark.parametrize(("evaluated", "finished"), [(1, False), (2, True), (4, False)])
def test_run_is_finished_only_with_an_evaluation_of_its_best_checkpoint(
    evaluated, finished, make_patient_run
):
    scores = {1: 4.0, 2: 2.0, 3: 3.0, 4: 3.0}
    run = make_patient_run(scores, [1, 2, 4], evaluated=evaluated, checkpoint="best")
    assert (find_result(run, Requested("validation", "best")) is not None) == finished


def test_error_names_all_finished_runs_of_other_configs(make_run):
    other = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, d_ff=99))
    runs = [make_run(), make_run("wide", saved=other), make_run("wide", 1, saved=other)]
    with pytest.raises(UserError, match=r"wide seed 0 .*model\.d_ff .*99.*2048.*wide seed 1") as error:
        find_results(runs, LAST, "sweep")
    assert "base seed 0" not in str(error.value)


def test_runs_that_were_evaluated_on_different_texts_are_an_error(make_run):
    runs = [make_run(seed=0), make_run(seed=1), make_run(seed=2, texts="789")]
    with pytest.raises(UserError, match=r"base seed 2 .*other texts than base seed 0"):
        find_results(runs, LAST, "sweep")


@pytest.mark.parametrize(
    "fields", [{"split": "test"}, {"checkpoints": [STEPS - 1, STEPS]}], ids=["another split", "an average"]
)
def test_run_that_was_evaluated_by_hand_in_another_way_is_not_finished(fields, make_run):
    runs = [make_run(seed=0), make_run(seed=1)]
    write_record(LAST.path(runs[1]), **{"checkpoints": [STEPS]} | fields)
    assert [result.run for result in find_results(runs, LAST, "sweep")] == runs[:1]


def test_invalid_record_is_an_error(make_run):
    run = make_run()
    with open(f"{run.workdir}/validation.de.scores.json", "w") as file:
        file.write("{}")
    with pytest.raises(UserError, match=r"validation\.de\.scores\.json"):
        find_result(run, LAST)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("names", "published"), [(["BLUE"], {}), ([], {"BLUE": 1.0}), (["BLEU"], {"chrf": 1.0})]
)
def test_unknown_score_is_an_error(names, published, finished, make_run):
    results = find_results([make_run()] if finished else [], LAST, "sweep")
    unknown = next(name for name in [*names, *published] if name != "BLEU")
    with pytest.raises(UserError, match=f"translation .*'{unknown}'.*'BLEU'"):
        choose_scores([Variant("base", {}, published)], names, results, BASE)


def test_scores_of_the_table_are_the_requested_the_published_or_the_first(make_run):
    results = find_results([make_run()], LAST, "sweep")
    published = [Variant("base", {}, {"BLEU": 1.0, "parameters": 2})]
    assert choose_scores(published, [], [], BASE) == ["BLEU"]
    assert choose_scores(published, ["perplexity"], [], BASE) == ["perplexity"]
    assert choose_scores([Variant("base")], [], [], BASE) == []
    assert choose_scores([Variant("base")], [], results, BASE) == ["BLEU"]


def test_name_of_an_existing_score_is_no_pattern():
    name = "BLEU, test[:5]"
    result = types.SimpleNamespace(scores={name: 1.0})
    assert choose_scores([Variant("base")], [name], [result], BASE) == [name]
