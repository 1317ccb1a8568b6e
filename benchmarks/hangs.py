"""`hangs`: a rank of real torchruns hangs in its data loader. How long until the next world is sealed.

All workers have real gloo collectives and say how far they are. The time after `hang_timeout` is what it costs to find
out: the stacks of all workers, the inquiry, and the end of the workers.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Case, Finding, require
from tests.support.torchrun_cluster import HERE, Cluster, Job

NAME = "hangs"
NODES, WORKERS = 2, 8
HANGS = 3
HANG_TIMEOUT_S = 10
TARGET_S = 3.0
"""On top of `hang_timeout`."""
START_S = 240.0
"""Sixteen workers import torch on few cores."""


def cases(is_quick: bool) -> list[Case]:  # noqa: ARG001
    """None: no other rendezvous is compared."""
    return []


def findings(is_quick: bool) -> list[Finding]:
    if is_quick:
        return []
    return judge_hangs([hang() for _ in range(HANGS)])


def judge_hangs(took_s: list[float]) -> list[Finding]:
    """How much longer than `hang_timeout` it takes."""
    case = f"{NODES} torchruns with {WORKERS} workers each, a rank hangs {len(took_s)} times"
    beyond = [each - HANG_TIMEOUT_S for each in took_s]
    median_s = statistics.median(beyond)
    what, target = f"hang_timeout={HANG_TIMEOUT_S} over to new world", f"under {TARGET_S:g}"
    return [
        Finding(NAME, case, f"{what}, median", median_s, "s", target, median_s < TARGET_S),
        Finding(NAME, case, f"{what}, worst", max(beyond), "s"),
    ]


def hang() -> float:
    """From the moment when a worker begins to hang until the next world is sealed."""
    with tempfile.TemporaryDirectory(prefix="ft-hang-") as folder:
        cluster = Cluster(Path(folder))
        try:
            took_s, line = _play(cluster)
        finally:
            cluster.close()  # It ends the run, which would go on.
    majority = NODES * WORKERS - 1
    require(f"{majority} ranks wait in all_reduce" in line, f"the stacks say something else: {line}")
    return took_s


def _play(cluster: Cluster) -> tuple[float, str]:
    # Many steps: the next world must not end before all is read.
    worker = ("--mode=loader", "--tells", "--steps=100000")
    script, conf = HERE / "workers" / "hang.py", {"hang_timeout": HANG_TIMEOUT_S}
    job = Job(cluster, str(NODES), worker=worker, script=script, conf=conf, nproc=WORKERS)
    nodes = job.start_all(NODES)
    host = nodes[0]
    host.wait_for(r"sealed cycle=2", START_S)
    hung = next(node for node in nodes if node.reports("hang"))
    took_s = host.logged_at(r"sealed cycle=2") - float(hung.reports("hang")[0]["at"])
    return took_s, host.lines(r"hang cycle=1 ")[0]
