"""The store host of real torchruns is SIGKILLed, and the run with it: how long until the last agent has left."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.measure import require
from tests.support.torchrun_cluster import Cluster


def lose_host(count: int) -> float:
    """Let so many nodes train, kill their host, and wait for all exits. Returns how long that took."""
    with tempfile.TemporaryDirectory(prefix="ft-host-loss-") as folder:
        cluster = Cluster(Path(folder))
        try:
            job = cluster.job(f"{count}:{count}", worker=["--until", cluster.path("done")])
            host = job.serve()
            nodes = [job.start(f"n{rank}", is_host=False, infra_rank=rank) for rank in range(count)]
            for node in nodes:
                node.wait_report("step", cycle=1)
            host.kill()
            killed_at = time.monotonic()
            codes = [node.wait_exit() for node in nodes]
            left_s = time.monotonic() - killed_at
        finally:
            left = cluster.close()
    require(not left, f"processes are left: {left}")
    require(set(codes) == {1}, f"nodes that lost their store exited with {codes}")
    return left_s
