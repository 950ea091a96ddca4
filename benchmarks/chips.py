"""Published figures of TPU chips, and the minimum time of a training step on a chip (a roofline estimate).

Sources: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e (key specifications of a chip). The
interconnect of v4 has six links of 50 GB/s (Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable
Supercomputer for Machine Learning"). Here, an interconnect bandwidth counts only the sent bytes. Google
publishes the sum of both directions for v5e (400 GB/s) and v6e (800 GB/s), and 4,800 Gbps for v5p.
"""

from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
    """The figures of a chip.

    Attributes:
      flops: peak bfloat16 operations per second of matrix products.
      memory: bytes of HBM.
      memory_bandwidth: bytes per second between HBM and chip.
      interconnect: bytes per second that the chip sends over all its links together.
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
    """The minimum seconds of the parts of a step on one chip, each computed without the other parts.

    Attributes:
      compute: time of the matrix products at the peak rate.
      memory: time to read and write the HBM.
      exposed: time of the collectives that do not overlap with computation.
      overlapped: time of the collectives that overlap with computation.
    """

    compute: float
    memory: float
    exposed: float
    overlapped: float

    @property
    def seconds(self) -> float:
        """Minimum time of a step: the exposed collectives plus the slowest of the other parts."""
        return self.exposed + max(self.compute, self.memory, self.overlapped)

    @property
    def parts(self) -> dict[str, float]:
        """{name of a part: its seconds}."""
        interconnect = self.exposed + self.overlapped
        return {"compute": self.compute, "HBM": self.memory, "interconnect": interconnect}

    @property
    def bound(self) -> str:
        """Name of the slowest part."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def utilisation(self) -> float:
        """Fraction of the chip's peak rate that the step uses in its minimum time."""
        return self.compute / self.seconds


def estimate(chip: Chip, flops: int, memory_bytes: int, exposed: float, overlapped: float) -> Roofline:
    """Estimates the `Roofline` of a step on one chip.

    Args:
      chip: a value of `CHIPS`.
      flops: operations of the matrix products. A multiply-add counts as two.
      memory_bytes: bytes read from and written to the HBM.
      exposed, overlapped: bytes that the chip sends in collectives without and with overlapping computation.
    """
    return Roofline(
        flops / chip.flops,
        memory_bytes / chip.memory_bandwidth,
        exposed / chip.interconnect,
        overlapped / chip.interconnect,
    )
