"""The worker of the benchmark `warm`: DDP on gloo until its first optimizer step. Prints when it had come how far.

usage: warm_worker.py STARTED_AT [PACKAGE] -- on the clock that all processes of a machine share. When standard input
ends, it ends: until then its memory can be measured.
"""

from __future__ import annotations

import sys
import time

MARKS = [("interpreter", time.monotonic())]

import importlib  # noqa: E402
import json  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    MARKS.append(("imports", time.monotonic()))
    dist.init_process_group("gloo")
    MARKS.append(("process group", time.monotonic()))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    MARKS.append(("first step", time.monotonic()))
    began_at, found = float(sys.argv[1]), {}
    for what, at in MARKS:
        found[what], began_at = at - began_at, at
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
