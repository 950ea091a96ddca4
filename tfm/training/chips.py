"""Published figures of TPU chips, and what a step of given work takes at least on one of them.

Sources: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e (key specifications of a chip); the
interconnect of v4 is six links of 50 GB/s (Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable
Supercomputer for Machine Learning"). Google gives that of v5e and v6e in both directions, 400 and 800 GB/s,
and that of v5p as 4,800 Gbps; here it is what a chip sends.
"""

from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
    """One chip.

    Attributes:
      flops: a second, of bfloat16 products.
      memory: bytes of HBM.
      memory_bandwidth: bytes a second.
      interconnect: bytes a second that it sends over all its links.
    """

    flops: float
    memory: int
    memory_bandwidth: float
    interconnect: float


CHIPS = {
    "v4": Chip(275e12, 32 * GIB, 1200e9, 300e9),
    "v5e": Chip(197e12, 16 * GIB, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * GIB, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * GIB, 1638e9, 400e9),
}


class Roofline(NamedTuple):
    """The least seconds that a step's parts take on one chip, each alone.

    Attributes:
      compute: of the matrix products, at the peak rate.
      memory: of reading and writing the HBM.
      exposed: of collectives that nothing overlaps.
      overlapped: of those that run beside computation.
    """

    compute: float
    memory: float
    exposed: float
    overlapped: float

    @property
    def seconds(self) -> float:
        """The least time of a step: exposed collectives come after what else is the slowest."""
        return self.exposed + max(self.compute, self.memory, self.overlapped)

    @property
    def bound(self) -> str:
        """What takes the most of it."""
        parts = {
            "compute": self.compute,
            "HBM": self.memory,
            "interconnect": self.exposed + self.overlapped,
        }
        return max(parts, key=lambda name: parts[name])

    @property
    def utilisation(self) -> float:
        """Share of the chip's peak rate."""
        return self.compute / self.seconds


def estimate(chip: Chip, flops: int, memory_bytes: int, exposed: float, overlapped: float) -> Roofline:
    """The `Roofline` of a step on one chip.

    Args:
      chip: of `CHIPS`.
      flops: multiply-adds x 2.
      memory_bytes: read from and written to the HBM.
      exposed, overlapped: bytes that it sends in collectives, without and with computation beside them.
    """
    return Roofline(
        flops / chip.flops,
        memory_bytes / chip.memory_bandwidth,
        exposed / chip.interconnect,
        overlapped / chip.interconnect,
    )
