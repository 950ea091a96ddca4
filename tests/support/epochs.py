"""The contract of endless batches, as a pytest class.

`batch(step)` is a pure function of the step, the seed and the share of the host.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

SEED, STEPS_OF_AN_EPOCH = 3, 3  # at least


class EpochLaws:
    """The contract of all sources of training batches.

    Attributes:
      cases: {name: make}. `make(folder, seed, host_index=0, host_count=1)` returns batches, which may write
        into the folder.
      same_examples: whether every epoch has the same examples. A mixture or another cut of a text has not.
    """

    cases: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    same_examples: ClassVar[bool] = True

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases."""
        if "make" in metafunc.fixturenames:
            metafunc.parametrize("make", self.cases.values(), ids=self.cases.keys())
        if "host_count" in metafunc.fixturenames:
            metafunc.parametrize("host_count", [2, 3])

    def examples(self, batch: Mapping[str, np.ndarray]) -> Sequence[Hashable]:
        """Returns the examples of a batch. No two examples of an epoch are equal."""
        raise NotImplementedError

    def steps(self, batches: Any) -> int:
        """Returns the number of batches of an epoch."""
        return batches.batches

    def epoch(self, batches: Any, number: int = 0) -> list[Sequence[Hashable]]:
        """Returns the examples of each batch of an epoch."""
        count = self.steps(batches)
        assert count >= STEPS_OF_AN_EPOCH
        return [self.examples(batches.batch(step)) for step in range(number * count, (number + 1) * count)]

    def assert_different(self, one: list[Sequence[Hashable]], other: list[Sequence[Hashable]]) -> None:
        """Asserts that two epochs differ in order and composition."""
        assert list(itertools.chain(*one)) != list(itertools.chain(*other))
        assert set(map(frozenset, one)) != set(map(frozenset, other))
        examples = [Counter(itertools.chain(*each)) for each in (one, other)]
        assert (examples[0] == examples[1]) == self.same_examples

    def test_epochs_differ_in_order_and_composition(self, make, tmp_path):
        batches = make(tmp_path, SEED)
        epochs = [self.epoch(batches, number) for number in range(6)]
        for one, other in itertools.combinations(epochs, 2):
            self.assert_different(one, other)
        if self.same_examples:
            assert set(Counter(itertools.chain(*epochs[0])).values()) == {1}

    def test_seeds_differ_in_order_and_composition(self, make, tmp_path):
        self.assert_different(*(self.epoch(make(tmp_path, seed)) for seed in (SEED, SEED + 1)))

    def test_repeated_step_gives_the_same_batch(self, make, tmp_path):
        first, again = make(tmp_path, SEED), make(tmp_path, SEED)
        count = self.steps(first)
        steps = [0, 1, count - 1, count, 3 * count + 1]
        expected = {step: first.batch(step) for step in steps}
        for step in reversed(steps):
            found = again.batch(step)
            assert found.keys() == expected[step].keys()
            for name, array in found.items():
                np.testing.assert_array_equal(array, expected[step][name])

    def test_hosts_have_disjoint_shares_of_each_batch(self, make, tmp_path, host_count):
        whole = make(tmp_path, SEED)
        hosts = [make(tmp_path, SEED, host_index=i, host_count=host_count) for i in range(host_count)]
        assert {self.steps(host) for host in hosts} == {self.steps(whole)}
        for step in range(2 * self.steps(whole)):
            shares = [host.batch(step) for host in hosts]
            assert len({tuple((name, x.shape) for name, x in share.items()) for share in shares}) == 1
            found = Counter(itertools.chain(*map(self.examples, shares)))
            assert found == Counter(self.examples(whole.batch(step)))
