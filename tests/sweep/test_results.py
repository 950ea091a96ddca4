"""Tests of the results of a sweep, which are read from the folders of its runs."""

import dataclasses

import pytest

from tests.support.records import write_record
from tests.support.sweeps import BASE, planned
from tfm import config
from tfm.errors import UserError
from tfm.sweep.results import Requested, choose_scores, find_result, find_results
from tfm.sweep.variants import Variant
from tfm.tasks import language_modeling

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
    settings = dataclasses.asdict(BASE.decoding)
    assert find_result(make_run(decoding=settings), LAST) is not None
    assert find_result(make_run(seed=1, decoding=settings | {"beam_size": 1}), LAST) is None


def test_language_model_that_was_evaluated_with_another_stride_is_not_finished(make_run):
    base = language_modeling.Config(training=BASE.training)
    settings = {"window": base.data.row_length, "stride": base.stride}
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


def test_run_that_stopped_early_by_patience_is_finished(make_run):
    patient = dataclasses.replace(BASE, training=dataclasses.replace(BASE.training, patience=3))
    run = make_run(saved=patient, checkpoints=[500])._replace(config=patient)
    write_record(f"{run.workdir}/validation.de.scores.json", checkpoints=[500])
    assert find_result(run, LAST) is not None


def test_error_names_all_finished_runs_of_other_configs(make_run):
    other = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, d_ff=99))
    runs = [make_run(), make_run("wide", saved=other), make_run("wide", 1, saved=other)]
    with pytest.raises(UserError, match=r"wide seed 0 .*model\.d_ff .*99.*2048.*wide seed 1") as error:
        find_results(runs, LAST, "sweep")
    assert "base seed 0" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("split", "test"), ("checkpoint", "best"), ("texts", "789"), ("ensemble", True)]
)
def test_runs_with_different_evaluations_are_an_error(name, value, make_run):
    runs = [make_run(seed=0), make_run(seed=1), make_run(seed=2, **{name: value})]
    with pytest.raises(UserError, match=f"base seed 2.*{name} {value}"):
        find_results(runs, LAST, "sweep")


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
