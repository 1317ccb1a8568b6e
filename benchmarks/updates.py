"""`updates`: an update of 4 steps over 64 parties without faults, against the same calls by a bare `asyncio.gather`.

Each step has a finish, so each party is called 8 times. A call awaits a timer, as it awaits an actor or an HTTP server:
5 ms are a call that does next to nothing over a network, 20 ms one that does a little. A bare gather restores nothing,
has no deadline, and does not know which party has which version.

The last case is a loss: two generators are Ray actors, and get weights of 300 kB from a trainer through gloo, by the
code of examples/rl_weight_sync. One gets a SIGKILL when a part of the weights is sent. The time is from then until the
other one has answered a prompt with the new weights. It has no contender.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import OURS, Case, Finding, Sample, require, timed
from benchmarks.ray_training import cluster
from ft_rendezvous.updates import Fleet, Party, Update
from tests.support import rl_example

NAME = "updates"
PARTIES, STEPS = 64, 4
CALLS = PARTIES * STEPS * 2
CALL_TIMES_MS = (5, 20)
BARE = "bare gather"
LOSSES = 7
SURVIVOR, VICTIM = "gen-0", "gen-1"


class TimerParty:
    """Counts its calls. Each takes the same time."""

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.count = 0

    async def call(self) -> None:
        self.count += 1
        await asyncio.sleep(self.call_s)


def cases(is_quick: bool) -> list[Case]:
    rounds = 5 if is_quick else 25
    found = [Case(NAME, _case_name(ms), rounds, partial(_prepare, ms / 1e3)) for ms in CALL_TIMES_MS]
    if is_quick:
        return found
    if find_spec("ray") is None:
        print("updates: no generator is killed without Ray: pip install 'ft-rendezvous[ray]'", file=sys.stderr)
    else:
        found.append(Case(NAME, "2 generators, one is killed: the other answers", LOSSES, prepare_loss))
    return found


def findings(is_quick: bool) -> list[Finding]:
    """What our own part of an update costs, per party and call."""
    rounds = 5 if is_quick else 25
    found = []
    for ms in CALL_TIMES_MS:
        with _prepare(ms / 1e3) as contenders:
            extra_s = [contenders[OURS]() - contenders[BARE]() for _ in range(rounds)]
        value = statistics.median(extra_s) / CALLS * 1e6
        found.append(Finding(NAME, _case_name(ms), "ours - bare gather, per call", value, "µs"))
    return found


def _case_name(ms: int) -> str:
    return f"{STEPS} steps, {PARTIES} parties, calls of {ms} ms"


@contextmanager
def _prepare(call_s: float) -> Iterator[Mapping[str, Sample]]:
    targets = [TimerParty(call_s) for _ in range(PARTIES)]
    fleet = Fleet([Party(f"party-{number}", target) for number, target in enumerate(targets)])
    with asyncio.Runner() as runner:
        yield {OURS: partial(_sample_fleet, runner, fleet, targets), BARE: partial(_sample_bare, runner, targets)}


def _sample_fleet(runner: asyncio.Runner, fleet: Fleet, targets: list[TimerParty]) -> float:
    before = sum(target.count for target in targets)
    seconds, report = timed(lambda: runner.run(fleet.update(_flow, version=1)))
    require(report.updated == PARTIES, f"{report.updated} parties have the version")
    require(sum(target.count for target in targets) - before == CALLS, "calls are missing")
    return seconds


def _sample_bare(runner: asyncio.Runner, targets: list[TimerParty]) -> float:
    before = sum(target.count for target in targets)
    seconds, _ = timed(lambda: runner.run(_call_bare(targets)))
    require(sum(target.count for target in targets) - before == CALLS, "calls are missing")
    return seconds


async def _flow(update: Update) -> None:
    for number in range(STEPS):
        await update.step(f"step-{number}", lambda p: p.call(), finish=lambda p: p.call())


async def _call_bare(targets: list[TimerParty]) -> None:
    for _ in range(STEPS * 2):
        await asyncio.gather(*(target.call() for target in targets))


# --- a loss -----------------------------------------------------------------------------------------


@contextmanager
def prepare_loss() -> Iterator[Mapping[str, Sample]]:
    """A trainer in this process, and generators on a Ray cluster of their own."""
    import ray  # noqa: PLC0415 - it is optional

    with cluster(1) as machines:
        ray.init(machines.address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            weight_sync = rl_example.load("weight_sync")
            trainer = weight_sync.Trainer(rl_example.load("generator").build_policy())
            sync = weight_sync.WeightSync(trainer, (SURVIVOR, VICTIM), on_unrecoverable="raise")
            with asyncio.Runner() as runner:
                runner.run(sync.wait_until_ready())
                yield {OURS: lambda: runner.run(lose_one(sync))}
        finally:
            ray.shutdown()


async def lose_one(sync: Any) -> float:
    """Seconds from the death of a generator to an answer of the other. The dead one is replaced afterwards."""
    import torch  # noqa: PLC0415 - it takes seconds, and the other cases do not need it

    version = max((record.version or 0) for record in sync.fleet.parties) + 1
    require((await sync.update(version)).attempts == 1, "an update without a loss was tried again")
    pid = await sync.fleet.serving(version)[1].handle.pid()
    killed_at: list[float] = []

    def kill() -> None:
        killed_at.append(time.perf_counter())
        os.kill(pid, signal.SIGKILL)

    sync.trainer.midway = kill
    report = await sync.update(version + 1)
    (party,) = sync.fleet.serving(version + 1)
    prompts = torch.ones(1, rl_example.load("generator").PROMPT_SIZE)
    answers = await party.handle.generate(prompts)
    seconds = time.perf_counter() - killed_at[0]
    require((report.attempts, report.failed, party.name) == (2, (VICTIM,), SURVIVOR), "the wrong generator was lost")
    require(answers is not None, "the other generator is paused")
    require(await party.handle.checksum() == sync.trainer.checksum(), "the weights differ")
    await sync.replace(VICTIM)
    return seconds
