"""A script that knows nothing of this project: DDP on gloo with an optimizer, and one line for each step.

usage: warm_train.py [FAIL_CYCLE HOW] -- in that cycle, rank 0 ends after its third step: with exit code HOW, or by the
signal -HOW, or it hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def report(kind: str, **fields: object) -> None:
    text = " ".join(f"{key}={value}" for key, value in fields.items())
    os.write(sys.stdout.fileno(), f"ft-test {kind} {text}\n".encode())


def end(how: str) -> None:
    if how == "hang":
        while True:
            time.sleep(3600)
    if how.startswith("-"):
        os.kill(os.getpid(), int(how[1:]))
    os._exit(int(how))


def main() -> None:
    cycle, rank = int(os.environ["FT_CYCLE_ID"]), int(os.environ["RANK"])
    fail_cycle, how, until = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    is_warm = "ft_rendezvous.warm.becoming" in sys.modules
    signal.signal(signal.SIGUSR1, lambda *_: report("usr1", rank=rank))
    report("begin", rank=rank, cycle=cycle, pid=os.getpid(), parent=os.getppid(), is_warm=is_warm)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while not os.path.exists(until) or step < 5:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        step += 1
        report("step", rank=rank, cycle=cycle, step=step, world=dist.get_world_size())
        if cycle == fail_cycle and rank == 0 and step == 3:
            end(how)
        stop = torch.tensor(int(os.path.exists(until) and step >= 5))
        dist.all_reduce(stop)
        if stop:
            break
        time.sleep(0.05)
    print("to standard error", file=sys.stderr, flush=True)
    # Not through the destructors: those of DDP and gloo wait for threads that may wait for the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
