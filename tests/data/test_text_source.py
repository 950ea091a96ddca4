"""Several sources read as one list, whatever the slice."""

import itertools

from tfm.data.text_source import JoinedSource, split_indices


def test_joined_sources_are_one_list():
    texts = [[(str(i), str(-i))] * count for i, count in enumerate((3, 0, 1, 5))]
    joined, expected = JoinedSource(texts), list(itertools.chain(*texts))
    for first, last, step in itertools.product([0, 2, 4, 9], [0, 3, 4, 9], [1, 2, 4, -1, -2]):
        assert joined[first:last:step] == expected[first:last:step]
    assert list(split_indices(range(0), [3, 4])) == []
