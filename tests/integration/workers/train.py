"""A worker that trains as little as possible: real gloo all_reduces, and one line of report for each.

What it does is said on the command line; what it is told by its agent, it prints. Lines are `ft-test <kind> k=v ...`:

    begin   before torch is imported: pid, ranks, bootstrap address, and the inputs a user may have set
    step    after an all_reduce: its number and its sum (of rank + 1, so the sum names the world)
    fail    this worker is about to fail on purpose
    end     it ends well
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

EXIT_ON_PURPOSE = 17


def report(kind: str, **fields: object) -> None:
    """One line in one write, so that workers sharing a log do not cut each other's lines."""
    text = " ".join(f"{key}={value}" for key, value in fields.items())
    os.write(sys.stdout.fileno(), f"ft-test {kind} {text}\n".encode())


def fail(**who: object) -> NoReturn:
    report("fail", **who)
    # Not through the interpreter's end: gloo's threads sometimes abort in it, and that would be the exit code.
    os._exit(EXIT_ON_PURPOSE)


def cycle_id() -> int:
    """The cycle as ft tells it; other backends have only the agent's own restart count."""
    return int(os.environ.get("FT_CYCLE_ID") or int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1, help="all_reduces to do when there is no --until")
    parser.add_argument("--until", type=Path, help="go on until this file exists")
    parser.add_argument("--step-s", type=float, default=0.1, help="pause between steps")
    parser.add_argument("--fail-below", type=int, default=0, help="fail in cycles below this one")
    parser.add_argument("--fail-rank", type=int, default=0, help="which rank fails")
    parser.add_argument("--fail-late", action="store_true", help="fail at the end instead of after the first step")
    parser.add_argument(
        "--linger-s", type=float, default=0.0, help="per rank: how much later than the one below it ends"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    env = os.environ
    rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
    who = {"cycle": cycle_id(), "rank": rank, "world": world, "pid": os.getpid()}
    report(
        "begin",
        **who,
        local_rank=env["LOCAL_RANK"],
        local_world=env["LOCAL_WORLD_SIZE"],
        group_rank=env["GROUP_RANK"],
        role_rank=env["ROLE_RANK"],
        master_port=env["MASTER_PORT"],
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE"),
        ft_cycle_id=env.get("FT_CYCLE_ID"),
        ft_infra_rank=env.get("FT_INFRA_RANK"),
        ft_domain_id=env.get("FT_DOMAIN_ID"),
    )

    import torch  # noqa: PLC0415 - costs seconds, and the line above must not wait for it
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    must_fail = who["cycle"] < options.fail_below and rank == options.fail_rank
    step = 0
    while True:
        is_over = options.until.exists() if options.until else step + 1 >= options.steps
        # The flag is reduced with the value: all ranks see the same sum, so all end at the same step.
        values = torch.tensor([rank + 1, int(is_over)])
        dist.all_reduce(values)
        report("step", **who, step=step, sum=int(values[0]))
        if must_fail and not options.fail_late:
            fail(**who)
        if values[1]:
            break
        time.sleep(options.step_s)
        step += 1
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(rank * options.linger_s)
    if must_fail:
        fail(**who)
    report("end", **who)


if __name__ == "__main__":
    main()
