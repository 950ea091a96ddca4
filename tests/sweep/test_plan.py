"""Tests of the plan of a sweep: the parameters and the finished runs."""

import dataclasses

import jax
import pytest

from tests.support import tiny_regression
from tests.support.sweeps import BASE, planned
from tfm.models import TransformerConfig
from tfm.sweep.plan import count_parameters, describe_plan


def test_parameters_of_the_base_model():
    assert count_parameters(planned().config) == 63_045_632


def test_counting_parameters_initializes_no_device(monkeypatch):
    """Otherwise the process of the sweep would occupy accelerator memory that its runs need."""

    def fail(*_):
        raise AssertionError("a device was initialized")

    for name in ("default_backend", "devices", "local_devices", "device_count"):
        monkeypatch.setattr(jax, name, fail)
    small = dataclasses.replace(BASE, model=TransformerConfig(encoder_layers=1, decoder_layers=1))
    assert count_parameters(small) == 26_294_272


@pytest.mark.long
def test_plan_counts_the_finished_runs_and_parameters():
    small = dataclasses.replace(BASE, model=TransformerConfig(d_ff=1024))
    unknown = planned("unknown", config=tiny_regression.Config())
    runs = [planned(), planned(seed=1), planned("small", config=small), unknown]
    lines = [line.split()[:3] for line in describe_plan(runs, {"base seed 1"})[1:]]
    assert lines == [["base", "1/2", "63,045,632"], ["small", "0/1", "50,450,432"], ["unknown", "0/1", "-"]]
