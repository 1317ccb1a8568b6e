"""Flows and parties that do what they should not: no update is called completed that is half done, and none hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ft_rendezvous import worker
from ft_rendezvous.errors import ConfigError, PartyDead, UpdateError
from ft_rendezvous.updates import Fleet, Party, PartyState, Update
from tests.updates.simulated_loop import simulate


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Generator:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def do(self, what: str, seconds: float = 1.0, error: BaseException | None = None) -> None:
        self.calls.append(what)
        await asyncio.sleep(seconds)
        if error is not None:
            raise error


def fleet_of(count: int = 2, **settings: Any) -> tuple[Fleet, list[Generator]]:
    generators = [Generator() for _ in range(count)]
    parties = [Party(f"gen-{number}", each) for number, each in enumerate(generators)]
    return Fleet(parties, **{"on_unrecoverable": "raise", **settings}), generators


async def load(update: Update, **options: Any) -> None:
    clean = {"undo": lambda p: p.do("undo"), "finish": lambda p: p.do("finish")}
    await update.step("load", lambda p: p.do("load", 50.0), **{**clean, **options})


async def catches_its_own_timeout(update: Update) -> None:
    try:
        async with asyncio.timeout(2.0):
            await load(update)
    except TimeoutError:
        pass


async def returns_before_its_step(update: Update) -> None:
    task = asyncio.create_task(load(update))
    await asyncio.sleep(2.0)
    assert not task.done()


async def drops_a_refusal(update: Update) -> None:
    steps = [update.step(name, lambda p: p.do("load"), undo=lambda p: p.do("undo")) for name in ("a", "b")]
    await asyncio.gather(*steps, return_exceptions=True)


@pytest.mark.parametrize("flow", [catches_its_own_timeout, returns_before_its_step, drops_a_refusal])
def test_a_flow_that_hides_a_missing_step_does_not_complete(flow: Any) -> None:
    fleet, generators = fleet_of()
    with pytest.raises(UpdateError):
        simulate(fleet.update(flow, version=1))
    assert all(each.calls.count("undo") == 1 for each in generators)
    assert fleet.serving(1) == ()


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_is_none_is_refused(timeout_s: float) -> None:
    fleet, _ = fleet_of()
    with pytest.raises(UpdateError) as raised:
        simulate(fleet.update(lambda update: load(update, timeout_s=timeout_s), version=1))
    assert isinstance(raised.value.__cause__, ConfigError)


@pytest.mark.parametrize("what", ["load", "undo", "finish"])
def test_an_error_without_a_text_is_an_error_like_others(what: str) -> None:
    fleet, generators = fleet_of(min_parties=2)

    async def flow(update: Update) -> None:
        def fault(name: str) -> BaseException | None:
            return Mute() if name == what else None

        await update.step(
            "load",
            lambda p: p.do("load", error=fault("load")),
            undo=lambda p: p.do("undo", error=fault("undo")),
            finish=lambda p: p.do("finish", error=fault("finish")),
        )
        if what == "undo":
            raise OSError("the flow fails, so that undo runs")

    with pytest.raises(UpdateError):
        simulate(fleet.update(flow, version=1))
    assert all(each.calls.count("finish") == 1 for each in generators)


def test_a_party_that_raises_generator_exit_has_failed() -> None:
    fleet, _ = fleet_of()

    async def flow(update: Update) -> None:
        def error(p: Any) -> BaseException | None:
            return GeneratorExit() if p.party_name == "gen-0" else None

        await update.step("load", lambda p: p.do("load", error=error(p)))

    simulate(fleet.update(flow, version=1))
    assert [record.state for record in fleet.parties] == [PartyState.SUSPECT, PartyState.HEALTHY]


def test_a_party_that_is_marked_dead_during_the_first_try_is_not_called_in_the_second() -> None:
    fleet, generators = fleet_of(3)

    async def flow(update: Update) -> None:
        def error(p: Any) -> BaseException | None:
            return OSError("once") if p.party_name == "gen-0" and update.attempt == 1 else None

        if update.attempt == 1:
            fleet.mark_failed("gen-1", PartyDead("its machine is gone"))
        await update.step("load", lambda p: p.do(f"load {update.attempt}", error=error(p)))

    simulate(fleet.update(flow, version=1))
    assert "load 2" not in generators[1].calls
    assert [party.name for party in fleet.serving(1)] == ["gen-2"]


def test_an_error_of_the_report_does_not_hide_that_of_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_report: object) -> bool:
        raise TypeError("no such version")

    monkeypatch.setattr(worker, "report_update", fail)
    fleet, _ = fleet_of(min_parties=2)

    async def flow(update: Update) -> None:
        await update.step("load", lambda p: p.do("load", error=OSError("broken")))

    with pytest.raises(UpdateError, match="broken"):
        simulate(fleet.update(flow, version=1))
