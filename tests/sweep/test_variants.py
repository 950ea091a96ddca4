"""Variants of a config: their flags, and what get_variants() may yield."""

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
    ],
)
def test_what_is_no_sweep_is_named(variants, message):
    with pytest.raises(UserError, match=message):
        check_variants(variants, "f.py")
