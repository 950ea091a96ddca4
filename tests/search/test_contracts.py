"""Tests of every search by the contracts of searches."""

import functools
import inspect

import jax

from tests.support.search_contracts import BeamContract, GreedyContract, SearchContract
from tfm import search

sample = functools.partial(search.sample, rng=jax.random.key(0))


def trace(*arguments, **options):
    return search.trace_beam_search(*arguments, **options)[0]


class TestBeamSearch(BeamContract):
    cases = {"beam_search": search.beam_search, "trace_beam_search": trace}


class TestGreedySearch(GreedyContract):
    cases = {"greedy_search": search.greedy_search}


class TestNarrowestSampling(GreedyContract):
    cases = {"top_k": functools.partial(sample, top_k=1), "top_p": functools.partial(sample, top_p=1e-6)}
    options, penalized = {"samples": 2}, False


class TestSampling(SearchContract):
    cases = {"sample": sample, "truncated": functools.partial(sample, temperature=3.0, top_k=3, top_p=0.9)}
    options, penalized = {"samples": 3}, False


def test_every_search_has_a_contract():
    contracts = (TestBeamSearch, TestGreedySearch, TestSampling)
    searches = {name for name in search.__all__ if takes_a_model(getattr(search, name))}
    assert searches == {"beam_search", "trace_beam_search", "greedy_search", "sample"}
    assert searches <= {name for contract in contracts for name in contract.cases}


def takes_a_model(value):
    return inspect.isfunction(value) and list(inspect.signature(value).parameters)[:2] == ["step", "state"]
