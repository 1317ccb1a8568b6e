"""A worker that trains with real gloo all_reduces, and hangs in one of several ways in the first cycle.

begin   when the process group exists, or before the hang at the start: rank and cycle
step    after an all_reduce: its number and its sum (of rank + 1)
hang    this worker is about to hang, and when, in seconds of the machine's clock
pause   this worker has announced a pause, or has ended it
end     it ends well
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading
import time
from datetime import timedelta

from ft_rendezvous import worker


def report(kind: str, **fields: object) -> None:
    text = " ".join(f"{key}={value}" for key, value in fields.items())
    os.write(sys.stdout.fileno(), f"ft-test {kind} {text}\n".encode())


def sleep_in_loader() -> None:
    while True:
        time.sleep(3600)


def loop_in_c() -> None:
    """One call that never returns and holds the interpreter: no handler of Python runs any more."""
    sum(itertools.repeat(0))


def lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("loader", "gil", "start", "checkpoint"), required=True)
    parser.add_argument("--at", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--tells", action="store_true", help="call progress(); if not, output must do")
    options = parser.parse_args()
    rank, cycle = int(os.environ["RANK"]), int(os.environ["FT_CYCLE_ID"])
    is_odd = rank == options.rank and cycle == 1
    # As many scripts do, to save before they end. A worker that hangs in C never comes to it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.mode == "start":
        report("begin", rank=rank, cycle=cycle)
    if is_odd and options.mode == "start":
        report("hang", at=time.time())
        lock_twice()

    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    if options.mode != "start":
        # Where output is progress, this is the first: to import torch takes long on a busy machine.
        report("begin", rank=rank, cycle=cycle)
    for step in range(options.steps):
        if is_odd and step == options.at and options.mode in ("loader", "gil"):
            report("hang", at=time.time())
            (sleep_in_loader if options.mode == "loader" else loop_in_c)()
        if is_odd and step == options.at and options.mode == "checkpoint":
            report("pause", is_over=False)
            with worker.pause_progress("checkpoint"):
                time.sleep(options.pause_s)
            report("pause", is_over=True)
        total = torch.tensor(rank + 1)
        dist.all_reduce(total)
        if options.tells:
            worker.progress(step)
        report("step", step=step, sum=int(total), rank=rank, cycle=cycle)
        time.sleep(0.1)
    report("end", rank=rank, cycle=cycle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
