"""What a user of a fleet notices, beyond the matrix of faults."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ft_rendezvous import worker
from ft_rendezvous.updates import Fleet, Party, PartyDead, PartyState, Update, UpdateError
from ft_rendezvous.updates import fleet as fleet_module
from ft_rendezvous.worker import UpdateReport
from tests.updates.simulated_loop import simulate


class Engine:
    """Notes its calls. `faults` says which of them raise, until they are taken out."""

    def __init__(self, **faults: BaseException) -> None:
        self.calls: list[str] = []
        self.faults = faults
        self.rank = 7

    async def do(self, what: str) -> str:
        self.calls.append(what)
        await asyncio.sleep(1.0)
        if what in self.faults:
            raise self.faults[what]
        return f"{what} done"

    def do_blocking(self, what: str) -> str:
        self.calls.append(f"{what} in {threading.current_thread().name.rpartition('-')[0]}")
        return what


async def flow(update: Update) -> None:
    await update.step("load", lambda p: p.do("load"), undo=lambda p: p.do("undo"), finish=lambda p: p.do("finish"))


def fleet_of(*engines: Engine, **settings: Any) -> Fleet:
    parties = [Party(f"gen-{number}", engine) for number, engine in enumerate(engines)]
    return Fleet(parties, **{"on_unrecoverable": "raise", **settings})


def states(fleet: Fleet) -> list[tuple[PartyState, int | None]]:
    return [(record.state, record.version) for record in fleet.parties]


# --- steps --------------------------------------------------------------------------------------------


def test_a_step_returns_what_each_party_returned() -> None:
    seen: list[object] = []

    async def look(update: Update) -> None:
        seen.append(await update.step("load", lambda p: p.do("load")))
        seen.append(await update.step("rank", lambda p: p.do(f"{p.party_name} {update.rank_of(p)} {p.rank}")))
        seen.append(await update.step("nothing", lambda _: None))
        seen.append((update.version, update.attempt, update.parties))

    simulate(fleet_of(Engine(), Engine()).update(look, version=3))
    assert seen == [
        {"gen-0": "load done", "gen-1": "load done"},
        {"gen-0": "gen-0 0 7 done", "gen-1": "gen-1 1 7 done"},
        {"gen-0": None, "gen-1": None},
        (3, 1, ("gen-0", "gen-1")),
    ]


def test_blocking_methods_run_in_threads() -> None:
    engine = Engine()

    async def block(update: Update) -> None:
        assert await update.step("load", lambda p: p.do_blocking("load")) == {"gen-0": "load"}

    asyncio.run(fleet_of(engine).update(block, version=1))
    assert engine.calls == ["load in ft-party"]


def test_an_action_that_returns_no_awaitable_is_named() -> None:
    async def wrong(update: Update) -> None:
        await update.step("load", lambda _: 5)  # type: ignore[arg-type, return-value]

    with pytest.raises(UpdateError, match="the action returned int: return an awaitable, or None"):
        simulate(fleet_of(Engine()).update(wrong, version=1))


def test_a_step_has_a_timeout_of_its_own() -> None:
    async def short(update: Update) -> None:
        await update.step("load", lambda p: p.do("load"), timeout_s=0.5)

    with pytest.raises(UpdateError, match=r"step 'load' on party 'gen-0': TimeoutError: it was not done after 0.5 s"):
        simulate(fleet_of(Engine()).update(short, version=1))


def test_an_attempt_that_failed_cannot_go_on() -> None:
    engines = Engine(load=ValueError("no memory")), Engine()
    later: list[int] = []

    async def swallow(update: Update) -> None:
        for step in ("load", "more"):
            try:
                await update.step(step, lambda p, step=step: p.do(step))  # type: ignore[misc]
            except UpdateError:
                later.append(update.attempt)

    report = simulate((fleet := fleet_of(*engines)).update(swallow, version=1))
    assert (report.outcome, report.attempts, report.failed) == ("completed", 2, ("gen-0",))
    assert later == [1, 1]
    assert engines[0].calls == ["load"]
    assert states(fleet) == [(PartyState.SUSPECT, None), (PartyState.HEALTHY, 1)]


def test_steps_and_updates_are_awaited_one_after_another() -> None:
    kept: list[Update] = []

    async def together(update: Update) -> None:
        kept.append(update)
        await asyncio.gather(*(update.step(name, lambda p: p.do("load")) for name in ("one", "two")))

    fleet = fleet_of(Engine())
    with pytest.raises(UpdateError, match="step 'two' cannot begin, because step 'one' is under way"):
        simulate(fleet.update(together, version=1))
    with pytest.raises(RuntimeError, match="because the update is over"):
        simulate(kept[0].step("three", lambda p: p.do("load")))

    async def twice() -> None:
        await asyncio.gather(fleet.update(flow, version=2), fleet.update(flow, version=3))

    with pytest.raises(RuntimeError, match="the update to version 2 is under way: await it first"):
        asyncio.run(twice())


def test_a_step_that_is_under_way_when_the_flow_ends_is_ended_before_the_clean_up() -> None:
    engines = Engine(), Engine()

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise LookupError("the other part")

    async def together(update: Update) -> None:
        await asyncio.gather(flow(update), fail())

    fleet = fleet_of(*engines)
    with pytest.raises(UpdateError, match="the flow raised LookupError: the other part"):
        simulate(fleet.update(together, version=1))
    assert [engine.calls for engine in engines] == [["load", "undo", "finish"]] * 2
    assert states(fleet) == [(PartyState.STALE, None)] * 2


# --- parties that come and go -------------------------------------------------------------------------


def test_a_party_that_is_dead_takes_no_part_until_another_takes_its_name() -> None:
    fleet = fleet_of(Engine(), Engine(load=PartyDead("killed")))
    assert simulate(fleet.update(flow, version=1)).failed == ("gen-1",)
    assert states(fleet) == [(PartyState.HEALTHY, 1), (PartyState.DEAD, None)]
    assert simulate(fleet.update(flow, version=2)).parties == 1
    fleet.put(Party("gen-1", Engine()))
    assert states(fleet)[1] == (PartyState.STALE, None)
    assert [party.name for party in fleet.serving(2)] == ["gen-0"]
    assert simulate(fleet.update(flow, version=3)).updated == 2
    assert [party.name for party in fleet.serving(3)] == ["gen-0", "gen-1"]


def test_a_party_that_comes_back_during_an_update_is_stale_after_it() -> None:
    fleet = fleet_of(Engine(), Engine())

    async def replaced(update: Update) -> None:
        fleet.put(Party("gen-1", Engine()))
        await flow(update)

    assert simulate(fleet.update(replaced, version=1)).updated == 1
    assert states(fleet) == [(PartyState.HEALTHY, 1), (PartyState.STALE, None)]


def test_an_update_that_reaches_too_few_because_parties_were_replaced_has_failed() -> None:
    fleet = fleet_of(Engine())
    engine = Engine()

    async def replaced(update: Update) -> None:
        await flow(update)
        fleet.put(Party("gen-0", engine))

    with pytest.raises(UpdateError, match="to version 1 failed: gen-0 was replaced: update again") as caught:
        simulate(fleet.update(replaced, version=1))
    assert caught.value.is_recoverable
    assert engine.calls == [], "the new party was not called"
    assert simulate(fleet.update(flow, version=2)).updated == 1


def test_a_clean_up_that_failed_in_the_first_try_is_told_though_the_second_completes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = fleet_of(Engine(), Engine(load=ValueError("no room"), undo=ValueError("still half loaded")))
    assert simulate(fleet.update(flow, version=1)).outcome == "completed"
    assert "in the first try of the update to version 1, undo of step 'load' failed on party 'gen-1'" in caplog.text


def test_a_party_found_dead_in_its_clean_up_is_dead() -> None:
    fleet = fleet_of(Engine(), Engine(load=ValueError(), undo=PartyDead()))
    simulate(fleet.update(flow, version=1))
    assert states(fleet)[1] == (PartyState.DEAD, None)


def test_a_clean_up_that_fails_alone_raises_and_the_others_have_the_version() -> None:
    fleet = fleet_of(Engine(), Engine(finish=ValueError("still paused")))
    with pytest.raises(
        UpdateError, match=r"the clean-up failed: finish of step 'load' failed on party 'gen-1'"
    ) as caught:
        simulate(fleet.update(flow, version=1))
    error = caught.value
    assert (error.step, error.party, error.updated, error.failed) == ("load", "gen-1", ("gen-0",), ("gen-1",))
    assert error.is_recoverable
    assert isinstance(error.__cause__, ValueError)
    assert states(fleet) == [(PartyState.HEALTHY, 1), (PartyState.SUSPECT, None)]


# --- interruptions ------------------------------------------------------------------------------------


def interrupted(by: Callable[[Update], Awaitable[None]], *engines: Engine) -> Fleet:
    fleet = fleet_of(*engines)

    async def broken(update: Update) -> None:
        await flow(update)
        await by(update)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(fleet.update(broken, version=1))
    return fleet


class QuickEngine(Engine):
    async def do(self, what: str) -> str:
        self.calls.append(what)
        await asyncio.sleep(0)
        if what in self.faults:
            raise self.faults[what]
        return what


async def raise_in_flow(_: Update) -> None:
    raise KeyboardInterrupt


async def raise_in_party(update: Update) -> None:
    await update.step("break", lambda p: p.do("break"))


async def raise_in_thread(update: Update) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    for record in update._trial.records:
        record.party.target.do_blocking = interrupt
    await update.step("break", lambda p: p.do_blocking("break"))


async def press_ctrl_c(update: Update) -> None:
    signal.raise_signal(signal.SIGINT)
    await update.step("wait", lambda p: p.do("wait"), undo=lambda p: p.do("undo wait"))
    await asyncio.sleep(60)


@pytest.mark.parametrize("by", [raise_in_flow, raise_in_party, raise_in_thread, press_ctrl_c])
def test_an_interrupt_cleans_up(by: Callable[[Update], Awaitable[None]]) -> None:
    engines = [QuickEngine(**{"break": KeyboardInterrupt()}), QuickEngine()]
    fleet = interrupted(by, *engines)
    for engine in engines:
        assert [call for call in engine.calls if call in ("load", "undo", "finish")] == ["load", "undo", "finish"]
        assert engine.calls.count("undo wait") == engine.calls.count("wait")
    assert {state for state, _ in states(fleet)} <= {PartyState.STALE, PartyState.SUSPECT}
    assert fleet.serving() == ()


def test_an_interrupt_in_a_clean_up_is_raised_after_it() -> None:
    engines = [QuickEngine(undo=SystemExit(3)), QuickEngine()]

    async def broken(update: Update) -> None:
        await flow(update)
        raise LookupError

    with pytest.raises(SystemExit):
        asyncio.run(fleet_of(*engines).update(broken, version=1))
    assert [engine.calls for engine in engines] == [["load", "undo", "finish"]] * 2


def test_a_second_cancellation_does_not_interrupt_the_clean_up() -> None:
    engine = Engine()

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fleet_of(engine).update(flow, version=1))
        for after_s in (0.5, 0.8, 1.7):
            asyncio.get_running_loop().call_later(after_s, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    simulate(main())
    assert engine.calls == ["load", "undo", "finish"]


def test_errors_of_the_clean_up_are_notes_of_a_cancellation() -> None:
    async def main() -> list[str]:
        fleet = fleet_of(Engine(undo=ValueError("cannot go back")))
        try:
            async with asyncio.timeout(0.5):
                try:
                    await fleet.update(flow, version=1)
                except asyncio.CancelledError as error:
                    return list(error.__notes__)
        except TimeoutError:
            pass
        return []

    assert simulate(main()) == ["undo of step 'load' failed on party 'gen-0': ValueError: cannot go back"]


# --- the last resort ----------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons of restarts that an agent was asked for."""
    reasons: list[str] = []

    def request(reason: str) -> bool:
        reasons.append(reason)
        return True

    monkeypatch.setattr(worker, "request_restart", request)
    return reasons


def fail_for_good(**settings: Any) -> tuple[UpdateError, Engine]:
    engine = Engine(load=ValueError("no memory"))
    with pytest.raises(UpdateError) as caught:
        simulate(fleet_of(engine, **settings).update(flow, version=4))
    assert engine.calls == ["load", "undo", "finish"]
    return caught.value, engine


def test_a_restart_is_asked_for_after_the_clean_up(asked: list[str]) -> None:
    error, _ = fail_for_good(on_unrecoverable="restart")
    assert asked == ["the update to version 4 failed: step 'load' on party 'gen-0': ValueError: no memory"]
    assert not error.is_recoverable
    assert error.__notes__ == ["a restart was asked for, and did not come within 30 s"]


def test_without_an_agent_the_error_says_so() -> None:
    error, _ = fail_for_good(on_unrecoverable="restart")
    assert error.__notes__ == ["there is no agent to ask for a restart"]


@pytest.mark.parametrize(("is_worker", "count"), [(False, 0), (True, 1)])
def test_in_a_run_the_default_is_a_restart(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, is_worker: bool, count: int
) -> None:
    monkeypatch.setattr(worker, "info", lambda: object() if is_worker else None)
    fail_for_good(on_unrecoverable=None)
    assert len(asked) == count


def test_a_function_is_called_with_the_error(asked: list[str], caplog: pytest.LogCaptureFixture) -> None:
    seen: list[BaseException] = []

    async def resort(error: UpdateError) -> None:
        await asyncio.sleep(1.0)
        seen.append(error)
        raise LookupError("no idea")

    error, _ = fail_for_good(on_unrecoverable=resort)
    assert (seen, asked) == ([error], [])
    assert error.__notes__ == ["on_unrecoverable failed: LookupError('no idea')"]
    assert "on_unrecoverable failed" in caplog.text


def test_a_blocking_function_is_called_in_a_thread() -> None:
    threads: list[str] = []
    engine = QuickEngine(load=ValueError())
    fleet = fleet_of(engine, on_unrecoverable=lambda _: threads.append(threading.current_thread().name))
    with pytest.raises(UpdateError):
        asyncio.run(fleet.update(flow, version=1))
    assert threads[0].startswith("ft-party")


def test_what_is_restored_is_not_escalated(asked: list[str]) -> None:
    fleet = fleet_of(Engine(), Engine(), on_unrecoverable="restart")

    async def broken(update: Update) -> None:
        await flow(update)
        raise LookupError("the checkpoint is gone")

    with pytest.raises(UpdateError, match="the flow raised LookupError: the checkpoint is gone") as caught:
        simulate(fleet.update(broken, version=1))
    assert caught.value.is_recoverable
    assert (caught.value.step, caught.value.party, asked) == (None, None, [])


def test_too_few_parties_at_the_start_are_named(asked: list[str]) -> None:
    fleet = fleet_of(Engine(), Engine(), min_parties=2, on_unrecoverable="restart")
    fleet.mark_failed("gen-1", PartyDead())
    with pytest.raises(UpdateError, match=r"it needs 2 parties, .* gen-0 is stale, gen-1 is dead: put parties"):
        simulate(fleet.update(flow, version=1))
    assert len(asked) == 1


# --- the journal --------------------------------------------------------------------------------------


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[UpdateReport]:
    sent: list[UpdateReport] = []
    monkeypatch.setattr(worker, "report_update", sent.append)
    return sent


def test_an_update_is_reported_with_the_time_it_lost(reports: list[UpdateReport]) -> None:
    fleet = fleet_of(Engine(), Engine(load=ValueError("no memory")))
    returned = simulate(fleet.update(flow, version=1))
    assert reports == [returned]
    (report,) = reports
    assert (report.version, report.outcome, report.attempts) == (1, "completed", 2)
    assert (report.parties, report.updated, report.failed) == (2, 1, ("gen-1",))
    assert [(step.name, step.duration_s) for step in report.steps] == [("load", 1.0), ("clean-up", 1.0)]
    assert (report.duration_s, report.lost_s) == (5.0, 3.0)
    assert report.reason == "the update to version 1 failed: step 'load' on party 'gen-1': ValueError: no memory"


def test_a_failed_and_a_cancelled_update_are_reported(reports: list[UpdateReport]) -> None:
    fail_for_good()

    async def main() -> None:
        async with asyncio.timeout(0.5):
            await fleet_of(Engine()).update(flow, version=5)

    with pytest.raises(TimeoutError):
        simulate(main())
    assert [(report.outcome, report.lost_s, report.reason) for report in reports] == [
        ("failed", 3.0, "the update to version 4 failed: step 'load' on party 'gen-0': ValueError: no memory"),
        ("failed", 2.5, "interrupted: CancelledError"),
    ]


def test_the_log_says_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ft_rendezvous"):
        simulate(fleet_of(Engine(), Engine(load=ValueError("no memory"))).update(flow, version=1))
    assert [record.getMessage() for record in caplog.records] == [
        "the update to version 1 failed: step 'load' on party 'gen-1': ValueError: no memory; "
        "it is tried again without gen-1",
        "the second try of the update to version 1 completed",
    ]


def test_the_wait_for_a_restart_is_bounded() -> None:
    assert fleet_module.RESTART_WAIT_S == 30.0


def test_an_abort_that_does_not_end_is_told_with_its_time() -> None:
    class Stuck:
        async def receive(self) -> None:
            await asyncio.Event().wait()

        async def release(self) -> None:
            await asyncio.Event().wait()

    async def transfer(update: Update) -> None:
        await update.step("transfer", lambda p: p.receive(), abort=lambda p: p.release(), timeout_s=3.0)

    fleet = Fleet([Party("gen", Stuck())], on_unrecoverable="raise", abort_timeout_s=2.0)
    with pytest.raises(UpdateError) as raised:
        simulate(fleet.update(transfer, version=1))
    assert any(
        "abort" in str(error) and "it was not done after 2 s" in str(error) for error in raised.value.cleanup_errors
    )
