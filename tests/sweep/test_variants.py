"""Tests of the variants of a config: their flags and the checks of get_variants()."""

import json

import numpy as np
import pytest

from tfm.errors import UserError
from tfm.sweep.variants import Variant, check_variants


def test_overrides_become_flags():
    variant = Variant("wide", {"model.d_model": 64, "model.scan": True, "training.clip_norm": None})
    assert variant.flags == [
        "--config.model.d_model=64",
        "--config.model.scan=True",
        "--config.training.clip_norm=None",
    ]


def test_numpy_values_become_plain_values():
    overrides = {"model.dropout": np.float32(0.5), "model.heads": np.int64(4), "a": np.array([1, 2])}
    (variant,) = check_variants([Variant("a", overrides, {"BLEU": np.float64(25.5)})], "f.py")
    assert variant == Variant("a", {"model.dropout": 0.5, "model.heads": 4, "a": (1, 2)}, {"BLEU": 25.5})
    assert {type(value) for value in variant.overrides.values()} == {float, int, tuple}
    json.dumps([variant.overrides, variant.published])


def test_variants_keep_their_order():
    variants = [Variant("b"), Variant("a"), Variant("c-1.5_x")]
    assert check_variants(iter(variants), "f.py") == variants


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ([], "it yields none"),
        (["base"], "to yield tfm.sweep.Variant, got 'base'"),
        ([Variant("a"), Variant("a")], "two variants with the name 'a'"),
        ([Variant("../a")], "digits, '.', '-' and '_', got '../a'"),
        ([Variant("")], "got ''"),
        ([Variant(3)], "got 3"),
        ([Variant("table.md")], "uses the name 'table.md'"),
        ([Variant("a", [("model.heads", 1)])], r"'a' in f.py.*got \[\('model.heads', 1\)\]"),
        ([Variant("a", {"training.seed": 3})], "'a' in f.py sets training.seed"),
        ([Variant("a", {"model.heads": {1}})], r"model.heads must be a number.*got \{1\}"),
        ([Variant("a", {}, {"BLEU": "25.8"})], "published BLEU, got '25.8'"),
        ([Variant("a", {}, {"BLEU": True})], "published BLEU, got True"),
        ([Variant("a", {}, 25.8)], "got 25.8"),
    ],
)
def test_error_of_an_invalid_sweep_names_the_value(variants, message):
    with pytest.raises(UserError, match=message):
        check_variants(variants, "f.py")
