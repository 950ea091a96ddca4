"""Tests of the MLflow tracker with a SQLite store, for a run that is resumed."""

import importlib.util
import json
from unittest import mock

import pytest

from tests.support.tracked_regression import SampledRegression, train_tracked
from tfm.training.run_log import read_metrics
from tfm.training.samples import read_samples
from tfm.training.trackers.run_ids import read_id, write_id

INSTALLED = all(map(importlib.util.find_spec, ("mlflow", "sqlalchemy")))
pytestmark = [
    pytest.mark.long,
    # Importing the package would take a second in each worker.
    pytest.mark.skipif(not INSTALLED, reason="needs the extra tracking"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns the folder of the store and of a run that is stopped after four steps and resumed."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'store.db'}")
        patch.setenv("MLFLOW_EXPERIMENT_NAME", "lines")
        for steps in (4, 6):
            (folder / "my run").mkdir(exist_ok=True)
            train_tracked(folder / "my run", "mlflow", steps=steps, eval_every=2)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    import mlflow

    return mlflow.MlflowClient(f"sqlite:///{folder / 'store.db'}")


@pytest.fixture(scope="module")
def run(client):
    """Returns the only run in the store."""
    (run,) = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    return run


def artifact(client, run, path, folder):
    return client.download_artifacts(run.info.run_id, path, str(folder))


def test_resumed_run_continues_the_mlflow_run_and_ends_it(folder, run):
    assert run.info.run_id == read_id(str(folder / "my run"), "mlflow")
    assert (run.info.run_name, run.info.status) == ("my run", "FINISHED")


def test_config_is_logged(client, run, tmp_path):
    """Parameters keep their first values. config.json has the new values."""
    assert run.data.params["training.steps"] == "4"
    assert run.data.params["model.d_model"] == "4"
    with open(artifact(client, run, "config.json", tmp_path), encoding="utf-8") as file:
        assert json.load(file)["training"]["steps"] == 6


def test_scalars_have_their_steps(folder, client, run):
    rows = read_metrics(str(folder / "my run"))
    for name, count in (("train/loss", 2), ("validation/score", 3)):
        found = client.get_metric_history(run.info.run_id, name)
        expected = [(row["step"], row[name]) for row in rows if name in row]
        assert [(point.step, point.value) for point in found] == expected
        assert len(expected) == count


def test_samples_and_pictures_are_logged(folder, client, run, tmp_path):
    there = artifact(client, run, "samples", tmp_path)
    samples = read_samples(str(folder / "my run"))
    assert [each.step for each in samples] == [2, 4, 6]
    for each in samples:
        stem = f"{there}/step-{each.step:010}"
        with open(f"{stem}.md", encoding="utf-8") as file:
            table = file.read()
        assert all(text in table for row in each.rows for text in row.values())
        with open(f"{stem}-slope.png", "rb") as copy, open(each.pictures["slope"], "rb") as original:
            assert copy.read() == original.read()


def test_failed_run_is_marked_as_failed_and_stopped_run_as_killed(folder, client, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'store.db'}")
    for error, status in ((RuntimeError, "FAILED"), (KeyboardInterrupt, "KILLED")):
        (tmp_path / status).mkdir()
        monkeypatch.setattr(SampledRegression, "evaluate", mock.Mock(side_effect=error))
        with pytest.raises(error):
            train_tracked(tmp_path / status, "mlflow")
        assert client.get_run(read_id(str(tmp_path / status), "mlflow")).info.status == status


def test_run_of_the_environment_takes_precedence_and_is_kept(client, folder, monkeypatch, tmp_path):
    """`mlflow run` and schedulers create a run and give its id to the process."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'store.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    experiment = mlflow.set_experiment("created elsewhere")
    runs = [client.create_run(experiment.experiment_id, run_name="theirs").info.run_id for _ in range(2)]
    for run_id, steps in zip(runs, (4, 6), strict=True):
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        train_tracked(tmp_path, "mlflow", steps=steps, eval_every=2)
        run = client.get_run(run_id)
        assert (run.info.run_name, run.info.status) == ("theirs", "FINISHED")
        assert run.data.params["training.steps"] == str(steps)
        assert read_id(str(tmp_path), "mlflow") == run_id


def test_ids_of_several_trackers_are_kept(tmp_path):
    workdir = str(tmp_path)
    assert read_id(workdir, "mlflow") is None
    for name in ("mlflow", "wandb"):
        write_id(workdir, name, f"id of {name}")
    assert [read_id(workdir, name) for name in ("mlflow", "wandb")] == ["id of mlflow", "id of wandb"]
    (tmp_path / "mlflow.id").write_bytes(b"\xff")
    assert read_id(workdir, "mlflow") is None
