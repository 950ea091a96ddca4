"""Tests of the scores of evaluations: ranking, due evaluations, early stopping and damaged files."""

import math
import os
import re
import types

import pytest

from tests.support.bare_task import BareTask
from tfm.errors import UserError
from tfm.tasks.translation.task import Translation
from tfm.training.config import TrainingConfig
from tfm.training.scores import SCORES_FILE, Scores, check_best, check_score_names, find_best
from tfm.training.task import Best


def make_scores(folder, values=(), order="max"):
    """Returns the scores of steps 3, 6, 9 and so on."""
    scores = Scores(str(folder), Best("validation/x", order))
    for number, value in enumerate(values, 1):
        scores.add(3 * number, {"validation/x": value, "validation/y": 0})
    return scores


@pytest.mark.parametrize(("order", "sign"), [("max", 1), ("min", -1)])
def test_training_stops_after_evaluations_without_a_better_score(order, sign, tmp_path):
    """A score that is NaN or equals the best score is no improvement."""
    config, ends = TrainingConfig(steps=100, warmup_steps=9, patience=2), []
    scores = make_scores(tmp_path, order=order)
    for step, value in enumerate((math.nan, -5.0, 3.0, math.nan, 4.0, 4.0, 2.0), 1):
        scores.add(step, {"validation/x": sign * value})
        ends.append(Scores(str(tmp_path), Best("validation/x", order)).describe_end(step, config))
    assert [bool(end) for end in ends] == [False] * 6 + [True]
    assert re.findall(r"-?\d+", ends[-1]) == ["2", str(sign * 4)]
    assert scores.describe_end(7, TrainingConfig(steps=100, warmup_steps=9)) == ""
    assert "100 steps" in scores.describe_end(100, TrainingConfig(steps=100, warmup_steps=9))


@pytest.mark.parametrize("best", [Best("validation/bleu"), Best("")])
def test_training_continues_while_the_loss_of_a_translation_improves(best, tmp_path):
    """The names are those of `Translation`, with and without validation sentences."""
    config = TrainingConfig(steps=100, warmup_steps=9, patience=2)
    scores, ends = Scores(str(tmp_path), best, Translation.validation_loss), []
    for step, nll in enumerate((5.26, 4.33, 4.33, 4.5), 1):
        bleu = {} if best.metric == "" else {"validation/bleu": 0.0}
        scores.add(step, {"validation/nll": nll} | bleu)
        ends.append(scores.describe_end(step, config))
    assert [bool(end) for end in ends] == [False] * 3 + [True]
    assert "nll 4.33" in ends[-1]


class Scored(BareTask):
    best = Best("validation/bleu")
    validation_scores = ("validation/nll", "validation/bleu")
    validation_loss = "validation/nll"


def test_config_chooses_the_score_that_selects_the_best_checkpoint():
    task = Scored()
    assert find_best(task, TrainingConfig()) == task.best
    assert find_best(task, TrainingConfig(best_by="max:bleu")) == Best("validation/bleu", "max")
    with pytest.raises(UserError, match=r"training\.best_by"):
        TrainingConfig(best_by="loss")


def test_loss_is_a_name_of_the_validation_loss_of_each_task():
    config = TrainingConfig(best_by="min:loss")
    assert find_best(Scored(), config) == Best("validation/nll", "min")
    check_score_names(Scored(), config)
    undeclared = BareTask()  # such a task may have a score of this name
    assert find_best(undeclared, config) == Best("validation/loss", "min")
    check_score_names(undeclared, config)
    with pytest.raises(UserError, match=r"training\.best_by.*\(score\).*'min:loss'"):
        check_best(undeclared, config, undeclared.evaluate({}, None).scores)


def test_score_that_no_evaluation_has_is_an_error_before_the_first_step():
    config = TrainingConfig(best_by="max:bluu")
    with pytest.raises(UserError, match=r"training\.best_by.*\(loss, nll, bleu\).*'max:bluu'"):
        check_score_names(Scored(), config)


def test_patience_requires_a_score_or_a_loss():
    task = BareTask()
    task.best = Best("")
    with pytest.raises(UserError, match=r"training\.patience"):
        check_score_names(task, TrainingConfig(patience=1))
    check_score_names(task, TrainingConfig())


def test_metric_of_a_task_without_its_prefix_is_an_error():
    task = types.SimpleNamespace(best=Best("bleu"))
    with pytest.raises(UserError, match=r"best of the task .*\(validation/bleu\).*'bleu'"):
        check_best(task, TrainingConfig(), {"validation/bleu": 1.0})
    check_best(types.SimpleNamespace(best=Best("")), TrainingConfig(), {"validation/bleu": 1.0})


def test_ranking_omits_nan_and_negates_scores_to_minimize(tmp_path):
    assert make_scores(tmp_path, (1.0, math.nan, 2.0), order="min").ranking() == {3: -1.0, 9: -2.0}


def test_evaluation_is_due_once(tmp_path):
    config = TrainingConfig(steps=7, warmup_steps=2, eval_every=3)
    scores = make_scores(tmp_path)
    assert [step for step in range(8) if scores.is_due(step, config)] == [3, 6, 7]
    scores.add(6, {"validation/y": 1.0})  # an evaluation without the metric
    assert [step for step in range(8) if scores.is_due(step, config)] == [3, 7]
    assert scores.ranking() == {}


def test_scores_of_later_steps_are_deleted(tmp_path):
    make_scores(tmp_path, (1.0, 5.0, 7.0)).drop_after(6)
    assert make_scores(tmp_path).ranking() == {3: 1.0, 6: 5.0}
    before = os.stat(tmp_path / SCORES_FILE).st_ino
    make_scores(tmp_path).drop_after(6)  # nothing to delete, so the file is not written again
    assert os.stat(tmp_path / SCORES_FILE).st_ino == before


def test_line_that_a_kill_has_cut_is_left_out(tmp_path):
    make_scores(tmp_path, (1.0,))
    with open(tmp_path / SCORES_FILE, "a", encoding="utf-8") as file:
        file.write('{"step": 4, "sco')
    scores = make_scores(tmp_path)
    assert scores.ranking() == {3: 1.0}
    scores.add(6, {"validation/x": 2.0})
    assert make_scores(tmp_path).ranking() == {3: 1.0, 6: 2.0}
