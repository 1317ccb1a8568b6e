"""Updates of real Ray actors: one is killed, or stopped, while all wait in the transfer."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import ray

from ft_rendezvous.updates import Fleet, PartyState, Update, UpdateError
from ft_rendezvous.updates.ray_actors import RayAdapter, ray_party
from ft_rendezvous.updates.rules import EndKind
from tests.ray.ray_cluster import RayCluster, connected
from tests.support.waiting import wait_until

STEP_TIMEOUT_S, ABORT_TIMEOUT_S = 10.0, 2.0
"""A stopped actor costs both of them, once per call. An actor that runs needs milliseconds."""
MAX_PAUSE_S = 0.2


class Generator:
    """Notes its calls. In the transfer it waits for the others: here, until it is aborted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.aborted = threading.Event()

    def pid(self) -> int:
        return os.getpid()

    def done(self) -> list[str]:
        return self.calls

    def call(self, what: str) -> str:
        self.calls.append(what)
        return what

    def receive(self, waits: bool) -> str:
        self.calls.append("receive")
        if waits:
            self.aborted.wait()
            raise ConnectionError("the group was killed")
        return "received"

    def kill_group(self) -> None:
        self.calls.append("kill group")
        self.aborted.set()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        raise ray.exceptions.ActorDiedError  # Of another actor, which this one has called.


@contextmanager
def started_generators() -> Iterator[list[Any]]:
    """Three actors and their process ids, in the connected cluster."""
    decorate: Any = ray.remote
    actors = [decorate(num_cpus=0, max_concurrency=4)(Generator).remote() for _ in range(3)]
    pids = ray.get([actor.pid.remote() for actor in actors], timeout=120.0)
    try:
        yield list(zip(actors, pids, strict=True))
    finally:
        for actor, pid in zip(actors, pids, strict=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            ray.kill(actor)
        for pid in pids:
            wait_until(f"process {pid} has ended", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))  # type: ignore[misc]


@pytest.fixture
def generators(ray_cluster: RayCluster) -> Iterator[list[Any]]:
    with connected(ray_cluster.address):
        ray_cluster.add()
        try:
            with started_generators() as started:
                yield started
        finally:
            ray_cluster.clear()


class Beat:
    """How long the event loop paused at most."""

    longest_pause_s = 0.0

    async def __aenter__(self) -> Beat:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0.01)
            now = loop.time()
            self.longest_pause_s, last = max(self.longest_pause_s, now - last - 0.01), now


async def update_with_fault(generators: list[Any], fault: signal.Signals) -> tuple[Fleet, Any, Beat]:
    """One update without a fault, then one in which the second generator gets a signal during the transfer."""
    fleet = Fleet(
        [ray_party(actor, f"gen-{number}") for number, (actor, _) in enumerate(generators)],
        step_timeout_s=STEP_TIMEOUT_S,
        abort_timeout_s=ABORT_TIMEOUT_S,
        on_unrecoverable="raise",
    )

    async def flow(update: Update) -> None:
        await update.step("pause", lambda p: p.call("pause"), finish=lambda p: p.call("resume"))
        waits = (update.version, update.attempt) == (2, 1)
        if waits:
            asyncio.get_running_loop().call_later(0.5, os.kill, generators[1][1], fault)
        await update.step(
            "transfer",
            lambda p: p.receive(waits),
            undo=lambda p: p.call("restore"),
            abort=lambda p: p.kill_group(),
        )

    async with Beat() as beat:
        await fleet.update(flow, version=1)
        report = await fleet.update(flow, version=2)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return fleet, report, beat


@pytest.mark.parametrize(
    ("fault", "state"),
    [(signal.SIGKILL, PartyState.DEAD), (signal.SIGSTOP, PartyState.SUSPECT)],
    ids=["killed", "stopped"],
)
def test_the_others_complete_the_update(generators: list[Any], fault: signal.Signals, state: PartyState) -> None:
    fleet, report, beat = asyncio.run(update_with_fault(generators, fault))
    assert (report.outcome, report.attempts, report.failed, report.updated) == ("completed", 2, ("gen-1",), 2)
    assert [(record.state, record.version) for record in fleet.parties] == [
        (PartyState.HEALTHY, 2),
        (state, 1),
        (PartyState.HEALTHY, 2),
    ]
    assert [party.name for party in fleet.serving()] == ["gen-0", "gen-2"]
    once = ["pause", "receive", "resume"]
    for actor, _ in (generators[0], generators[2]):
        calls = ray.get(actor.done.remote(), timeout=60.0)
        assert calls == [*once, "pause", "receive", "kill group", "restore", "resume", *once]
    assert beat.longest_pause_s <= MAX_PAUSE_S


def test_a_stopped_generator_that_goes_on_is_cleaned_up_and_takes_part_again(generators: list[Any]) -> None:
    fleet, _, _ = asyncio.run(update_with_fault(generators, signal.SIGSTOP))
    actor, pid = generators[1]
    os.kill(pid, signal.SIGCONT)
    once = ["pause", "receive", "resume"]
    calls = wait_until("it has cleaned up", lambda: _calls(actor, 7), 60.0)
    assert sorted(calls[3:]) == sorted(["pause", "receive", "kill group", "restore", "resume"])

    async def flow(update: Update) -> None:
        await update.step("pause", lambda p: p.call("pause"), finish=lambda p: p.call("resume"))
        await update.step("transfer", lambda p: p.receive(False), undo=lambda p: p.call("restore"))

    assert asyncio.run(fleet.update(flow, version=3)).updated == 3
    assert ray.get(actor.done.remote(), timeout=60.0)[-3:] == once


def _calls(actor: Any, at_least: int) -> list[str] | None:
    calls: list[str] = ray.get(actor.done.remote(), timeout=60.0)
    return calls if len(calls) > at_least else None


def test_an_error_that_an_actor_has_of_another_one_says_nothing_about_itself(generators: list[Any]) -> None:
    actor, _ = generators[0]

    async def fail() -> None:
        await ray_party(actor).handle.fail()

    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        asyncio.run(fail())
    assert RayAdapter(actor).judge(caught.value) is EndKind.RAISED


def test_too_few_actors_are_unrecoverable(generators: list[Any]) -> None:
    fleet = Fleet([ray_party(actor) for actor, _ in generators], min_parties=3, on_unrecoverable="raise")

    async def flow(update: Update) -> None:
        os.kill(generators[0][1], signal.SIGKILL)
        await update.step("transfer", lambda p: p.receive(True), abort=lambda p: p.kill_group(), timeout_s=30.0)

    with pytest.raises(UpdateError, match="step 'transfer' on party 'actor-") as caught:
        asyncio.run(fleet.update(flow, version=1))
    assert isinstance(caught.value.__cause__, ray.exceptions.RayActorError)
    assert not caught.value.is_recoverable


KILL_STEPS = ("pause", "release", "connect", "transfer")


def test_an_actor_that_is_killed_in_any_step_is_dead_and_the_others_complete(ray_cluster: RayCluster) -> None:
    """All steps, each with all parties, in one test: to connect to a cluster takes longer than an update."""
    with connected(ray_cluster.address):
        for fatal_step, victim in itertools.product(KILL_STEPS, range(3)):
            with started_generators() as generators:
                check_kill(generators, fatal_step, victim)


def check_kill(generators: list[Any], fatal_step: str, victim: int) -> None:
    """The victim dies inside its call. Every begun step of the others is finished or undone once per try."""
    fleet = Fleet(
        [ray_party(actor, f"gen-{number}") for number, (actor, _) in enumerate(generators)],
        step_timeout_s=STEP_TIMEOUT_S,
        abort_timeout_s=ABORT_TIMEOUT_S,
        on_unrecoverable="raise",
    )

    async def flow(update: Update) -> None:
        for step in KILL_STEPS:
            is_fatal = update.attempt == 1 and step == fatal_step

            def action(p: Any, step: str = step, is_fatal: bool = is_fatal) -> Any:
                return p.die() if is_fatal and p.party_name == f"gen-{victim}" else p.call(step)

            is_last = step == KILL_STEPS[-1]
            clean: dict[str, Any] = {"undo" if is_last else "finish": lambda p, step=step: p.call(f"clean {step}")}
            await update.step(step, action, **clean)

    async def run() -> tuple[Any, Beat]:
        async with Beat() as beat:
            report = await fleet.update(flow, version=1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return report, beat

    report, beat = asyncio.run(run())
    dead, others = f"gen-{victim}", [number for number in range(3) if number != victim]
    assert (report.outcome, report.attempts, report.failed, report.updated) == ("completed", 2, (dead,), 2)
    assert "ActorDied" in report.reason or "died" in report.reason.lower(), report.reason
    assert [record.state for record in fleet.parties if record.name == dead] == [PartyState.DEAD]
    assert [party.name for party in fleet.serving(1)] == [f"gen-{number}" for number in others]
    begun = KILL_STEPS[: KILL_STEPS.index(fatal_step) + 1]
    first_try = [*begun, *(f"clean {step}" for step in reversed(begun))]
    second_try = [*KILL_STEPS, *(f"clean {step}" for step in reversed(KILL_STEPS[:-1]))]
    for number in others:
        assert ray.get(generators[number][0].done.remote(), timeout=60.0) == [*first_try, *second_try]
    assert beat.longest_pause_s <= MAX_PAUSE_S
