"""A node started from Python: `elastic_launch` of a function. Prints what it returned.

usage: launch_function.py BACKEND ENDPOINT RUN_ID MIN MAX UNTIL_FILE KEY=VALUE...

With LAUNCH_FORKS=1 its workers are forks, and ignore the signal that torch has the kernel send when their agent dies: a
worker that hangs in native code does not react to it either. With LAUNCH_FORKSERVER=1 they start warm.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path


def train(until: str) -> tuple[int, int]:
    """Rank and sum, once the file exists."""
    had_torch = "torch._dynamo" in sys.modules
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if "LAUNCH_FORKS" in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    value = torch.tensor([rank + 1])
    dist.all_reduce(value)
    print(
        f"ft-test step cycle={os.environ.get('FT_CYCLE_ID')} rank={rank} sum={int(value)} pid={os.getpid()} "
        f"had_torch={had_torch}",
        flush=True,
    )
    while not Path(until).exists():
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()
    return rank, int(value)


def choose_start_method() -> str:
    if "LAUNCH_FORKSERVER" in os.environ:
        multiprocessing.set_forkserver_preload(["torch", "torch._dynamo"])
        return "forkserver"
    return "fork" if "LAUNCH_FORKS" in os.environ else "spawn"


def main() -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    backend, endpoint, run_id, low, high, until, *conf = sys.argv[1:]
    config = LaunchConfig(
        min_nodes=int(low),
        max_nodes=int(high),
        nproc_per_node=1,
        run_id=run_id,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_configs=dict(item.split("=", 1) for item in conf),
        max_restarts=3,
        monitor_interval=0.1,
        start_method=choose_start_method(),
    )
    results = elastic_launch(config, train)(until)
    print(f"ft-test results={results}", flush=True)


if __name__ == "__main__":
    main()
