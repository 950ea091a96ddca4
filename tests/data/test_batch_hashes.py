"""Tests that batches never change between versions, because resumed runs continue with the same data."""

import hashlib

import pytest

from tests.data.cases import ALL_BATCHES

STEPS = 200
# Each hash covers the batches of every host, for one, two and three hosts.
HASHES = {
    "buckets": "a3b2c3d0576b699461febbf4582269d4",
    "packed": "ec2e32ca028488ccaba65e8cbbcba2c0",
    "mixed buckets": "a6f5e8e85dbbf25fe9f613448f975f8c",
    "mixed packed": "3f581de59ae5ccd287c460209d5d18a2",
    "segmentations": "1abb11dcec1e666fe1796bfe9506f77a",
    "contiguous documents": "ffc7ca14959e5b271cfdc9914d9b0bcf",
    "packed documents": "b791af409b821b38efed4827db5e826a",
    "images": "c0f3be16c312f442c2a37c1bd05324a7",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL_BATCHES)
def test_batches_equal_those_of_earlier_versions(kind, tmp_path):
    digest = hashlib.sha256()
    for host_count in (1, 2, 3):
        for host_index in range(host_count):
            batches = ALL_BATCHES[kind](tmp_path, 5, host_index=host_index, host_count=host_count)
            for step in range(STEPS):
                for name, array in sorted(batches.batch(step).items()):
                    digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    assert digest.hexdigest()[:32] == HASHES[kind]
