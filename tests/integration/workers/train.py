"""A worker that trains as little as possible: real gloo all_reduces, and one line of report for each.

What it does is said on the command line; what it is told by its agent, it prints. Lines are `ft-test <kind> k=v ...`:

    begin   before torch is imported: pid, ranks, bootstrap address, and the inputs a user may have set
    step    after an all_reduce: its number and its sum (of rank + 1, so the sum names the world)
    fail    this worker is about to fail on purpose
    stop    SIGTERM has come, and this worker takes its time
    stay    SIGTERM or SIGINT has come, and this worker stays until it may go
    info    what ft_rendezvous.worker says of this worker
    usr1    SIGUSR1 has come
    ask     it has asked its agent for something, and whether it was heard
    end     it ends well
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from ft_rendezvous import worker

EXIT_ON_PURPOSE = 17
EVERY_RANK = -1


def report(kind: str, **fields: object) -> None:
    """One line in one write, so that workers sharing a log do not cut each other's lines."""
    text = " ".join(f"{key}={value}" for key, value in fields.items())
    os.write(sys.stdout.fileno(), f"ft-test {kind} {text}\n".encode())


def fail(exit_code: int, **who: object) -> NoReturn:
    report("fail", **who)
    # Not through the interpreter's end: gloo's threads sometimes abort in it, and that would be the exit code.
    os._exit(exit_code)


def is_to_fail(options: argparse.Namespace, cycle: int, rank: int, world: int) -> bool:
    if options.fail_until.exists() if options.fail_until else cycle >= options.fail_below:
        return False
    if options.fail_node is not None:
        return os.environ.get("FT_INFRA_RANK") == str(options.fail_node)
    if options.fail_by_turns:
        return rank == cycle % world
    return options.fail_rank in (rank, EVERY_RANK)


def stop_slowly(stop_s: float, **who: object) -> None:
    """Take so long to end when asked to, as a worker that saves its state."""

    def stop(*_: object) -> NoReturn:
        report("stop", **who)
        time.sleep(stop_s)
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)


def stay_until(gate: Path, **who: object) -> None:
    """Do not end when asked to, before this file exists."""

    def stay(signum: int, _frame: object) -> NoReturn:
        report("stay", **who, signal=signal.Signals(signum).name)
        wait_for(gate)
        os._exit(1)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stay)


def catch_usr1(then: str, **who: object) -> None:
    """Tell of SIGUSR1, and that a checkpoint was written because of it, or end well: what was done is saved."""

    def catch(*_: object) -> None:
        report("usr1", **who)
        if then == "checkpoint":
            report("ask", **who, what="checkpoint", is_heard=worker.at_checkpoint())
        if then == "end":
            sys.exit(0)

    signal.signal(signal.SIGUSR1, catch)


def ask(wanted: str, **who: object) -> None:
    """Ask for what is wanted in this cycle, as in `restart:1`."""
    what, _, cycle = wanted.partition(":")
    if int(cycle) == who["cycle"]:
        requests = {"restart": worker.request_restart, "drain": worker.request_drain, "update": report_update}
        request = requests[what]
        report("ask", **who, what=what, is_heard=request("it wants to"))


def report_update(reason: str) -> bool:
    """Report a plain update, and one that failed on one of two generators and was retried."""
    steps = (worker.UpdateStep(name="pause", duration_s=0.25), worker.UpdateStep(name="transfer", duration_s=1.5))
    plain = worker.UpdateReport(
        version=1,
        outcome="completed",
        attempts=1,
        parties=2,
        updated=2,
        failed=(),
        steps=steps,
        duration_s=2.0,
        lost_s=0.0,
    )
    retried = dataclasses.replace(
        plain, version=2, attempts=2, updated=1, failed=("gen-1",), duration_s=5.0, lost_s=3.0, reason=reason
    )
    return worker.report_update(plain) and worker.report_update(retried)


def wait_for(path: Path | None) -> None:
    while path is not None and not path.exists():
        time.sleep(0.02)


def wait_for_bound(path: Path | None, step: int) -> None:
    while path is not None and not (path.exists() and step <= int(path.read_text() or -1)):
        time.sleep(0.02)


def save(path: Path | None, **what: object) -> None:
    """One line in one write: whoever is ended meanwhile has saved the step or has not."""
    if path is not None:
        with path.open("a") as file:
            file.write(" ".join(f"{key}={value}" for key, value in what.items()) + "\n")


def first_step(path: Path | None) -> int:
    """The step after the last one that was saved."""
    saved = path.read_text().splitlines() if path is not None and path.exists() else []
    return int(saved[-1].rpartition("step=")[2]) + 1 if saved else 0


def wait_to_be_stopped() -> NoReturn:
    while True:
        signal.pause()


AddUp = Callable[[int, int], tuple[int, int]]


def join_world() -> tuple[AddUp, Callable[[], None]]:
    """How to add up two numbers over all ranks, and how to leave them."""
    import torch  # noqa: PLC0415 - costs seconds, and the first report must not wait for it
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", timeout=timedelta(minutes=5))

    def add_up(first: int, second: int) -> tuple[int, int]:
        values = torch.tensor([first, second])
        dist.all_reduce(values)
        return int(values[0]), int(values[1])

    def leave() -> None:
        dist.barrier()
        dist.destroy_process_group()

    return add_up, leave


def stay_alone() -> tuple[AddUp, Callable[[], None]]:
    """A world of one: nobody fails of another's end, as with gloo, and nobody waits for torch to be imported."""
    return lambda first, second: (first, second), lambda: None


def cycle_id() -> int:
    """The cycle as ft tells it; other backends have only the agent's own restart count."""
    return int(os.environ.get("FT_CYCLE_ID") or int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1, help="all_reduces to do when there is no --until")
    parser.add_argument("--until", type=Path, help="go on until this file exists")
    parser.add_argument("--step-s", type=float, default=0.1, help="pause between steps")
    parser.add_argument("--fail-below", type=int, default=0, help="fail in cycles below this one")
    parser.add_argument("--fail-rank", type=int, default=0, help=f"which rank fails; {EVERY_RANK}: all")
    parser.add_argument("--fail-node", type=int, help="the infra rank of the node that fails, whatever its rank")
    parser.add_argument("--fail-by-turns", action="store_true", help="another rank in every cycle")
    parser.add_argument("--fail-when", type=Path, help="fail no earlier than this file exists")
    parser.add_argument("--fail-until", type=Path, help="without torch: fail, or wait, until this file exists")
    parser.add_argument("--fail-late", action="store_true", help="fail at the end instead of after the first step")
    parser.add_argument(
        "--idle-below", type=int, default=0, help="in cycles below this one, without torch: fail at once or wait"
    )
    parser.add_argument(
        "--alone-below", type=int, default=0, help="in cycles below this one, without torch: steps nobody shares"
    )
    parser.add_argument("--exit-code", type=int, default=EXIT_ON_PURPOSE, help="of a worker that fails")
    parser.add_argument("--stop-s", type=float, default=0.0, help="how long to take to stop on SIGTERM")
    parser.add_argument(
        "--linger-s", type=float, default=0.0, help="per rank: how much later than the one below it ends"
    )
    parser.add_argument("--linger-until", type=Path, help="ranks above 0 end when this file exists")
    parser.add_argument("--stay-rank", type=int, help="which rank does not end on SIGTERM and SIGINT")
    parser.add_argument("--stay-until", type=Path, help="when it may end: once this file exists")
    parser.add_argument("--on-usr1", choices=("tell", "checkpoint", "end"), help="what to do on SIGUSR1; else: nothing")
    parser.add_argument("--save-rank", type=int, help="which rank saves, and tells of it")
    parser.add_argument("--save-every", type=int, default=1, help="after how many steps")
    parser.add_argument("--checkpoint", type=Path, help="the file of all that was saved: go on after its last step")
    parser.add_argument("--bound", type=Path, help="do no step beyond the number in this file")
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        help="restart:N, drain:N, update:N: do it in cycle N",
    )
    parser.add_argument("--ask-rank", type=int, default=0, help="which rank asks")
    parser.add_argument("--tell-info", action="store_true", help="report what worker.info() says")
    return parser.parse_args()


def prepare_for_signals(options: argparse.Namespace, **who: object) -> None:
    if options.stop_s:
        stop_slowly(options.stop_s, **who)
    if who["rank"] == options.stay_rank:
        stay_until(options.stay_until, **who)
    if options.on_usr1:
        catch_usr1(options.on_usr1, **who)


def main() -> None:
    options = parse()
    env = os.environ
    rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
    who = {"cycle": cycle_id(), "rank": rank, "world": world, "pid": os.getpid()}
    prepare_for_signals(options, **who)
    report(
        "begin",
        **who,
        local_rank=env["LOCAL_RANK"],
        local_world=env["LOCAL_WORLD_SIZE"],
        group_rank=env["GROUP_RANK"],
        role_rank=env["ROLE_RANK"],
        master_addr=env["MASTER_ADDR"],
        master_port=env["MASTER_PORT"],
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE"),
        ft_cycle_id=env.get("FT_CYCLE_ID"),
        ft_infra_rank=env.get("FT_INFRA_RANK"),
        ft_domain_id=env.get("FT_DOMAIN_ID"),
        domain=env.get("FT_NODE_DOMAIN"),
        ft_group_id=env.get("FT_GROUP_ID"),
        replica_group_id=env.get("REPLICA_GROUP_ID"),
        num_replica_groups=env.get("NUM_REPLICA_GROUPS"),
        lighthouse=env.get("TORCHFT_LIGHTHOUSE"),
    )
    if options.tell_info:
        me = worker.info()
        fields = {} if me is None else {**dataclasses.asdict(me), "rank_over_groups": me.rank_over_groups}
        report("info", **fields)
    must_fail = is_to_fail(options, who["cycle"], rank, world)
    # A cycle without torch costs little, and nobody fails of another's end, as with gloo.
    if who["cycle"] < options.idle_below:
        wait_for(options.fail_when) if must_fail else wait_to_be_stopped()
        fail(options.exit_code, **who)
    if options.fail_until:
        # Whoever fails last may have looked before the file was there, and whoever waits before that: it trains now.
        fail(options.exit_code, **who) if must_fail else wait_for(options.fail_until)

    # Read before anybody can save again: nobody does before all have met.
    step = first_step(options.checkpoint)
    add_up, leave = stay_alone() if who["cycle"] < options.alone_below else join_world()
    while True:
        wait_for_bound(options.bound, step)
        is_over = options.until.exists() if options.until else step + 1 >= options.steps
        # The flag is added up with the value: all ranks see the same sum, so all end at the same step.
        total, over_count = add_up(rank + 1, int(is_over))
        report("step", **who, step=step, sum=total)
        if must_fail and not options.fail_late:
            wait_for(options.fail_when)
            fail(options.exit_code, **who)
        if step == 0 and rank == options.ask_rank:
            for wanted in options.ask:
                ask(wanted, **who)
        if rank == options.save_rank and (step + 1) % options.save_every == 0:
            save(options.checkpoint, **who, step=step)
            worker.at_checkpoint()
        if over_count:
            break
        time.sleep(options.step_s)
        step += 1
    leave()
    time.sleep(rank * options.linger_s)
    if rank > 0:
        wait_for(options.linger_until)
    if must_fail:
        fail(options.exit_code, **who)
    report("end", **who)


if __name__ == "__main__":
    main()
