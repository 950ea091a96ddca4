"""Batches that do not fit are halved, by the estimate or after the device's error, with equal results."""

import dataclasses
import threading
import time

import jax
import numpy as np
import pytest

import tfm
from tests.support.tiny import randomize_weights
from tfm.data.batching import decode_rows
from tfm.decoding import batch_splitting, generate, scoring
from tfm.decoding.batch_splitting import run_batches
from tfm.decoding.generate import DecodingConfig, decode
from tfm.decoding.scoring import score_pairs
from tfm.errors import UserError
from tfm.workdir import runs

LENGTHS = [3, 9, 4, 4, 7, 8, 2]


def out_of_memory():
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")


class Device:
    """Adds 100 to each row's number, unless it is given more than `most` rows."""

    def __init__(self, most=99):
        self.most, self.tried = most, []

    def compute(self, rows):
        self.tried.append(len(rows))
        if len(rows) > self.most:
            raise out_of_memory()
        return (np.array(rows) + 100,)


def run(device, needed=lambda rows: None, batch_size=4):
    found = {}
    batches = decode_rows(LENGTHS, batch_size)
    for indices, (values,) in run_batches(
        batches, device.compute, needed, lambda rows: ("One row", "shorten it")
    ):
        for index, value in zip(indices, values, strict=False):
            assert index not in found
            found[index] = int(value)
    return found


EXPECTED = {i: i + 100 for i in range(len(LENGTHS))}


@pytest.mark.parametrize(("memory", "largest"), [(800, 4), (799, 2), (399, 1), (75, 1)])
def test_batches_are_halved_until_they_fit(monkeypatch, memory, largest):
    monkeypatch.setattr(batch_splitting, "available_memory", lambda: memory)
    device = Device()
    assert run(device, lambda rows: 75 * len(rows)) == EXPECTED
    assert max(device.tried) == largest


def test_too_large_rows_are_errors_before_running(monkeypatch):
    monkeypatch.setattr(batch_splitting, "available_memory", lambda: 2**30)
    device = Device()
    message = r"One row needs about 2.00 GiB and there are 1.00 GiB: shorten it\."
    with pytest.raises(UserError, match=message):
        run(device, lambda rows: 2**31 if max(LENGTHS[i] for i in rows) == 9 else 1)
    assert device.tried == []


class Waiting:
    """Takes the place of `jax.device_get`: waits for a moment, and counts who does so at once.

    Where more than `limit` do, the memory does not suffice.
    """

    def __init__(self, limit=99):
        self.now, self.most, self.limit, self._lock = 0, 0, limit, threading.Lock()

    def __call__(self, tree):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            fits = self.now <= self.limit
        time.sleep(0.05)
        with self._lock:
            self.now -= 1
        if not fits:
            raise out_of_memory()
        return tree


@pytest.mark.parametrize(("estimate", "at_once"), [(37, 2), (38, 1)])
def test_two_batches_at_once_share_the_memory(monkeypatch, estimate, at_once):
    waiting = Waiting()
    monkeypatch.setattr(batch_splitting, "available_memory", lambda: 100)
    monkeypatch.setattr(batch_splitting.jax, "device_get", waiting)
    assert run(Device(), lambda rows: estimate, batch_size=1) == EXPECTED
    assert waiting.most == at_once


def test_a_row_that_fits_by_itself_is_computed(monkeypatch):
    waiting = Waiting(limit=1)
    monkeypatch.setattr(batch_splitting.jax, "device_get", waiting)
    assert run(Device(), batch_size=1) == EXPECTED
    assert waiting.most == 2


def test_unread_batches_are_not_computed():
    device = Device()
    batches = run_batches(decode_rows(LENGTHS, 1), device.compute, lambda rows: None, None)
    next(batches)
    batches.close()
    assert len(device.tried) < len(LENGTHS)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_out_of_memory_gives_smaller_batches(most):
    device = Device(most)
    assert run(device) == EXPECTED
    failed = [count for count in device.tried if count > most]
    assert len(failed) <= 3  # a size that has failed is not tried again


def test_a_single_row_out_of_memory_is_an_error():
    with pytest.raises(UserError, match=r"One row does not fit .*RESOURCE_EXHAUSTED.* bytes\.\): shorten it"):
        run(Device(0))


def test_other_device_errors_are_raised():
    def fail(rows):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        list(run_batches(decode_rows(LENGTHS, 4), fail, lambda rows: None, None))


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(randomize_weights(runs.load(str(tiny_run))))


TEXTS = ["red dog", "a", "big green bird sleeps runs red", "cat runs", "blue"]
SEARCHES = {
    "beam": {"beam_size": 3},
    "greedy": {"beam_size": 1},
    "samples": {"samples": 3, "seed": 5},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "by"),
    [("beam", "estimate"), ("beam", "device"), ("greedy", "estimate"), ("samples", "estimate")],
)
def test_split_batches_decode_to_the_same(name, by, translator, monkeypatch):
    task, params = translator.run.task, translator.run.params
    sources = [[*ids, 2] for ids in task.tokenizer.encode(TEXTS)]
    config = DecodingConfig(max_extra_tokens=8, **SEARCHES[name])
    whole = decode(task.model, params, sources, config)
    search, tried = generate.search_batch, []

    def limited(model, members, inputs, *others):
        tried.append(len(inputs))
        if by == "device" and len(inputs) > 2:
            raise out_of_memory()
        return search(model, members, inputs, *others)

    if by == "estimate":
        monkeypatch.setattr(generate, "_search_bytes", lambda settings, config, rows, *_: rows * 2**30)
        monkeypatch.setattr(batch_splitting, "available_memory", lambda: 6 * 2**30)
    monkeypatch.setattr(generate, "search_batch", limited)
    split = decode(task.model, params, sources, config)
    assert max(tried) == (2 if by == "estimate" else 8)
    assert [[found.ids for found in each] for each in split] == [
        [found.ids for found in each] for each in whole
    ]
    for one, other in zip(split, whole, strict=True):
        np.testing.assert_allclose([x.score for x in one], [x.score for x in other], rtol=1e-5)


@pytest.mark.parametrize("fields", [{"beam_size": 1000}, {"max_extra_tokens": 65_536}, {"samples": 1000}])
def test_searches_that_never_fit_are_errors(fields, translator, monkeypatch):
    monkeypatch.setattr(batch_splitting, "available_memory", lambda: 2**23)
    name, value = next(iter(fields.items()))
    message = rf"Decoding one input of \d+ tokens needs about .*decoding\.{name} \({value:,}\)"
    with pytest.raises(UserError, match=message):
        translator.translate(["red dog"], **fields)


@pytest.mark.long
def test_scoring_splits_batches_too(translator, monkeypatch):
    task, params = translator.run.task, translator.run.params
    sources, targets = ([[7] * n + [2] for n in side] for side in ((5, 3, 9, 4), (4, 8, 2, 6)))
    config = DecodingConfig(batch_size=4)
    whole = score_pairs(task.model, params, sources, targets, config)
    weights = sum(x.nbytes for x in jax.tree.leaves(params))
    estimate = task.model.memory_estimate.scoring_bytes(
        rows=2, source=12, target=12, chunk=config.batch_size * config.width
    )
    monkeypatch.setattr(batch_splitting, "available_memory", lambda: (weights + estimate) / 0.75)
    counts, score = [], scoring._score_batch

    def counted(model, members, inputs, *others):
        counts.append(len(inputs))
        return score(model, members, inputs, *others)

    monkeypatch.setattr(scoring, "_score_batch", counted)
    for one, other in zip(score_pairs(task.model, params, sources, targets, config), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert max(counts) <= 2
    with pytest.raises(UserError, match=r"one pair of 90,001 and 2 tokens needs about .*: leave it out"):
        score_pairs(task.model, params, [[7] * 90_000 + [2]], [[7, 2]], dataclasses.replace(config))
