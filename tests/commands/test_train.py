"""The flags of training that fit or do not fit each other, found before any work."""

import types

import jax
import pytest

from tfm.commands import train
from tfm.errors import UserError


def fail():
    raise ValueError("coordinator_address should be defined.")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"coordinator": "nonsense"}, "--coordinator must be HOST:PORT, got 'nonsense'"),
        ({"coordinator": "host:"}, "--coordinator must be HOST:PORT"),
        ({"coordinator": "host:1", "process_id": 2}, "--process_id must be below --processes, got 2 of 2"),
        ({"distributed": True}, r"does not find the other processes \(coordinator_address should be defined"),
    ],
)
def test_hosts_that_cannot_be_joined_are_refused(flags, message, monkeypatch):
    arguments = {"distributed": False, "coordinator": "", "processes": 2, "process_id": 0} | flags
    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(UserError, match=message):
        train.join_hosts(types.SimpleNamespace(**arguments))
