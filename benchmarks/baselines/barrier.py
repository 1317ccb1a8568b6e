"""NVIDIA's barrier rendezvous: numbers only, which we measured once and outside of these benchmarks.

It is the handler of today's releases of nvidia-resiliency-ext (main of August 2026). It is not on PyPI, so it cannot
take turns with the other contenders. All its nodes were threads of one process, on a machine of the kind that the
other benchmarks use.
"""

from __future__ import annotations

SOURCE = "main of August 2026"

FORM_S: dict[int, tuple[float, float]] = {
    8: (0.106, 0.106),
    64: (0.138, 0.138),
    256: (0.26, 0.26),
    1_024: (2.0, 2.4),
}
"""From the first arrival to the last rank in hand, by number of nodes: the fastest and the slowest time."""

READ_NODES = 10_000
READ_S = 0.196
"""Reading the records of so many participants."""

RATIOS = "about 8, 2 to 4, 2, 4 and 25 times as fast"
"""Ours compared with it: worlds of 8, 64, 256 and 1,024 nodes, and the read. Rounded, because no turns were taken."""
