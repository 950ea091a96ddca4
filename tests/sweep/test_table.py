"""Tests of the table of a sweep: intervals against SciPy, judgements and the Markdown."""

import math
import re

import numpy as np
import pytest
import scipy

from tfm.sweep.table import Interval, Row, difference_interval, judge, make_table, mean_interval
from tfm.sweep.variants import Variant


@pytest.mark.parametrize("count", [2, 3, 10])
def test_mean_interval_equals_scipy(count):
    rng = np.random.default_rng(0)
    values = rng.normal(20, 2, count)
    low, high = scipy.stats.t.interval(0.95, count - 1, np.mean(values), scipy.stats.sem(values))
    assert mean_interval(list(values)) == pytest.approx((np.mean(values), (high - low) / 2))


@pytest.mark.parametrize("count", [2, 5])
def test_difference_interval_is_paired_by_seed(count):
    rng = np.random.default_rng(0)
    base = {seed: 20.0 + 3 * seed for seed in range(count)}
    values = {seed: base[seed] + rng.normal(1, 0.2) for seed in reversed(base)}
    expected = scipy.stats.ttest_rel(
        [values[seed] for seed in base], [base[seed] for seed in base]
    ).confidence_interval(0.95)
    found = difference_interval(values, base)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((expected.low, expected.high))


def test_difference_uses_only_shared_seeds():
    base = {0: 1.0, 1: 5.0, 2: 9.0}
    assert difference_interval({7: 0.0, 1: 7.0, 2: 11.0}, base) == (2.0, 0.0)
    assert difference_interval({7: 0.0}, base) is None


def test_single_value_has_no_interval():
    assert math.isnan(mean_interval([3.0]).half)
    assert math.isnan(difference_interval({0: 3.0}, {0: 2.0, 1: 1.0}).half)
    assert mean_interval([3.0]).format() == "3.00"


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_diverged_run_has_no_interval(value):
    found = mean_interval([value, 1.0, 2.0])
    assert found.format() == f"{value}"
    assert math.isnan(difference_interval({0: value, 1: 1.0}, {0: value, 1: 2.0}).half)
    assert judge(found, 0.3) == "open"


def test_runs_that_diverged_in_opposite_variants_have_no_interval():
    found = difference_interval({0: math.inf, 1: 5.0}, {0: 5.0, 1: math.inf})
    assert math.isnan(found.mean)
    assert math.isnan(found.half)


@pytest.mark.parametrize(
    ("difference", "published", "expected"),
    [
        (Interval(1.0, 0.5), 0.3, "yes"),
        (Interval(-1.0, 0.5), -0.3, "yes"),
        (Interval(1.0, 0.5), -0.3, "no"),
        (Interval(1.0, 1.5), -0.3, "open"),
        (Interval(0.1, 0.5), 0.0, "open"),
        (Interval(1.0, 0.5), 0.0, "no"),
        (Interval(-1.0, 0.5), 0.0, "no"),
        (Interval(1.0, math.nan), 0.3, "open"),
    ],
)
def test_judgement_of_a_published_difference(difference, published, expected):
    assert judge(difference, published) == expected


def row(variant, seed, bleu, parameters=1_500_000):
    return Row(variant, seed, {"BLEU": bleu, "TER": 1.0}, parameters)


def test_table_has_a_line_for_each_finished_variant():
    variants = [
        Variant("base", {}, {"BLEU": 25.8, "parameters": 65e6}),
        Variant("wide", {}, {"BLEU": 26.2}),
        Variant("own"),
        Variant("waiting"),
    ]
    rows = [
        row("wide", 0, 31.0),
        row("base", 0, 30.0),
        row("wide", 1, 31.5),
        row("base", 1, 30.2),
        row("own", 0, 9.0),
    ]
    header, _, *lines = make_table(variants, rows, ["BLEU"]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *lines)]
    assert [line[0] for line in cells] == ["variant", "base", "wide", "own"]
    assert {len(line) for line in cells} == {8}
    assert cells[1] == ["base", "2", "1.50 (published: 65)", "30.10 ± 1.27", "25.80", "", "", ""]
    difference = difference_interval({0: 31.0, 1: 31.5}, {0: 30.0, 1: 30.2}).format("+")
    assert cells[2][3:] == [mean_interval([31.0, 31.5]).format(), "26.20", difference, "+0.40", "open"]
    assert cells[3][3:] == ["9.00", "", "-21.00", "", ""]  # the difference from seed 0 of base


def test_table_without_published_scores_has_no_columns_for_them():
    table = make_table(
        [Variant("base"), Variant("wide")], [row("base", 0, 9.0), row("wide", 0, 9.5)], ["BLEU"]
    )
    header = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
    assert header == ["variant", "seeds", "parameters (millions)", "BLEU", "BLEU - base"]


def test_bars_and_stars_in_names_stay_within_their_cells():
    name = "C-*|x"
    table = make_table([Variant(name)], [row(name, 0, 9.0)], ["BLEU"])
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()} == {5}
    assert table.splitlines()[2].startswith(r"| C-\*\|x | 1 |")
    assert table.endswith(" |\n")


def test_differences_show_the_sign_of_positive_numbers():
    for mean, text in ((0.4, "+0.40 ± 0.10"), (-0.4, "-0.40 ± 0.10")):
        assert Interval(mean, 0.1).format("+") == text
    assert Interval(0.4, math.nan).format() == "0.40"
