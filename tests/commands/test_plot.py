"""Tests of `tfm plot`: every kind of plot, and errors."""

import re

import numpy as np
import pytest

from tests.support import eight_gaussians
from tfm.commands import plot
from tfm.config import save
from tfm.errors import UserError
from tfm.training.run_log import read_metrics
from tfm.workdir import runs


@pytest.fixture
def drawn(monkeypatch):
    """Replaces the saving of figures. Returns the list of (figure, path)."""
    found = []
    monkeypatch.setattr(plot, "save", lambda figure, path, _: found.append((figure, path)))
    return found


def draw(drawn, *arguments):
    plot.main([str(each) for each in arguments])
    return drawn[-1][0].axes


def points(axes, line=0):
    return axes.lines[line].get_xydata()


def test_curves_are_the_default_kind(drawn, tiny_run):
    rows = read_metrics(str(tiny_run))
    for arguments in ([tiny_run], ["curves", tiny_run]):
        axes = draw(drawn, *arguments)[0]
        expected = [(row["step"], row["train/nll"]) for row in rows if "train/nll" in row]
        np.testing.assert_array_equal(points(axes), expected)
    assert [path for _, path in drawn] == ["curves.png", "curves.png"]
    (axes,) = draw(drawn, tiny_run, "--metric=train/learning_rate", "--output=a.svg")
    assert axes.get_ylabel() == "train learning rate"
    assert drawn[-1][1] == "a.svg"


def test_folder_given_in_two_ways_is_an_error(tiny_run):
    with pytest.raises(UserError, match="different folders"):
        plot.main(["curves", str(tiny_run), f"{tiny_run}/"])


def test_lengths_have_scores_of_groups_of_sentences(drawn, tiny_run, tmp_path, monkeypatch):
    score, calls = plot.measures.score_by_length, []
    monkeypatch.setattr(
        plot.measures, "score_by_length", lambda *texts: calls.append(texts[:3]) or score(*texts)
    )
    config = runs.open_folder(str(tiny_run)).config
    save(config, runs.config_path(str(tmp_path)))
    with pytest.raises(UserError, match=r"tfm evaluate --workdir="):
        plot.main(["lengths", str(tmp_path)])
    references = (tiny_run.parent / "corpus" / "test.de").read_text().splitlines()
    halves = [line if len(line.split()) > 4 else "falsch" for line in references]
    (tmp_path / "test.de.hypotheses").write_text("".join(f"{line}\n" for line in halves))
    (axes,) = draw(drawn, "lengths", tmp_path)
    words, scores = points(axes).T
    assert (np.diff(words) > 0).all()
    assert words[0] < 4
    assert scores[0] < 1 < 99 < scores[-1]
    sources = (tiny_run.parent / "corpus" / "test.en").read_text().splitlines()
    assert [list(map(list, texts)) for texts in calls] == [[sources, halves, references]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected KIND|DIR"),
        (["lengths"], "folder of a run after tfm plot lengths, got nothing"),
        (["RUN", "--output=a.gif"], r"end in \.png, \.svg, \.pdf, got 'a\.gif'"),
        (["no_such_folder"], "Expected the metrics of a run at no_such_folder"),
        (["lengths", "no_such_folder"], "Expected the folder of a run at no_such_folder"),
        (["RUN", "RUN"], "RUN"),
        (["RUN", "--metric=bleu"], r"'bleu'.*train/nll"),
    ],
)
def test_mistakes_are_errors(arguments, message, tiny_run):
    with pytest.raises(UserError, match=message.replace("RUN", re.escape(str(tiny_run)))):
        plot.main([each.replace("RUN", str(tiny_run)) for each in arguments])


def test_runs_of_other_tasks_are_errors(regression_run):
    with pytest.raises(UserError, match="tfm plot lengths needs a run that translates"):
        plot.main(["lengths", str(regression_run)])


def test_run_of_a_task_without_data_is_an_error():
    with pytest.raises(UserError, match="tfm plot lengths needs a run that translates"):
        runs.require_translation(eight_gaussians.make_config(), "tfm plot lengths")


@pytest.mark.long
def test_figure_is_written_to_the_output(tiny_run, tmp_path):
    path = tmp_path / "curves.pdf"
    plot.main([str(tiny_run), f"--output={path}"])
    assert path.read_bytes().startswith(b"%PDF")
