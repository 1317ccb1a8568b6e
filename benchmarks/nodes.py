"""Made-up nodes whose arrivals look like a real cluster's, in the bytes that matter."""

from __future__ import annotations

from ft_rendezvous.core.model import Arrival, NodeInfo

EPOCH = "00000000000e90c4"
CYCLE_ID = 1
BORN_US = 1_234_567_123_456
"""How long the first node's machine had been up."""


def make_arrivals(count: int) -> list[Arrival]:
    """Arrivals of nodes with eight GPUs each, eighteen nodes to a domain."""
    return [
        Arrival(
            cycle_id=CYCLE_ID,
            incarnation=f"{index:016x}",
            seq=index + 1,
            node=NodeInfo(
                addr=f"node-{index:05d}.cluster.local",
                pid=100_000 + index,
                infra_rank=index,
                domain_id=f"rack-{index // 18:04d}",
                role="default",
                local_world_size=8,
                born_us=BORN_US + index * 1_024,
                boot_id=f"{index * 2_654_435_761 % (1 << 32):08x}",
            ),
            bootstrap_port=30_000 + index % 20_000,
        )
        for index in range(count)
    ]
