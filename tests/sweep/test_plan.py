"""Tests of the plan of a sweep: parameters, FLOPs and hours."""

import dataclasses

import jax
import pytest

from tests.support import tiny_regression
from tests.support.sweeps import BASE, FLOPS, planned
from tfm.models import TransformerConfig
from tfm.sweep.plan import count_parameters, describe_plan, estimate_hours
from tfm.training.config import TrainingConfig


def test_parameters_and_flops_of_the_base_model():
    assert count_parameters(planned().config) == 63_045_632
    assert planned().count_flops() == FLOPS


def test_counting_parameters_initializes_no_device(monkeypatch):
    """Otherwise the process of the sweep would occupy accelerator memory that its runs need."""

    def fail(*_):
        raise AssertionError("a device was initialized")

    for name in ("default_backend", "devices", "local_devices", "device_count"):
        monkeypatch.setattr(jax, name, fail)
    small = dataclasses.replace(BASE, model=TransformerConfig(encoder_layers=1, decoder_layers=1))
    assert count_parameters(small) == 26_294_272


def test_flops_are_proportional_to_steps_and_batch_size():
    data = dataclasses.replace(BASE.data, batch_tokens=50_000)
    assert planned(config=dataclasses.replace(BASE, data=data)).count_flops() == 2 * FLOPS
    longer = dataclasses.replace(BASE, training=TrainingConfig(steps=300_000))
    assert planned(config=longer).count_flops() == 3 * FLOPS


def test_task_without_an_estimate_has_no_parameters_flops_or_hours():
    run = planned(config=tiny_regression.Config())
    assert (count_parameters(run.config), run.count_flops()) == (None, None)
    assert estimate_hours(run, 1e9) is None


def test_hours_are_flops_divided_by_speed():
    assert estimate_hours(planned(), 1e12) == pytest.approx(FLOPS / 1e12 / 3600)
    assert estimate_hours(planned(), None) is None


def test_plan_sums_the_hours_of_unfinished_runs():
    small = dataclasses.replace(BASE, model=TransformerConfig(d_ff=1024))
    runs = [planned(), planned(seed=1), planned("small", config=small), planned("small", 1, small)]
    header, base, other, total = describe_plan(runs, {"base seed 1"}, 1e15)
    assert header.split() == ["variant", "finished", "parameters", "FLOP", "hours", "differs", "in"]
    assert base.split() == ["base", "1/2", "63,045,632", "9.46e+17", "0.26", "model.d_ff=7"]
    assert other.split()[:4] == ["small", "0/2", "50,450,432", "7.57e+17"]
    hours = (FLOPS + 2 * 6 * 50_450_432 * 25_000 * 100_000) / 1e15 / 3600
    assert total.startswith(f"{hours:,.2f} hours of training left")
    assert "measured" in describe_plan(runs, set(), None)[-1]
    unknown = [planned(config=tiny_regression.Config())]
    assert "FLOP" in describe_plan(unknown, {"base seed 0"}, None)[-1]
