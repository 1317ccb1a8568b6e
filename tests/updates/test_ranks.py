"""Several ranks of one process as one party: they enter a collective together, and are released together."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ft_rendezvous.updates import Fleet, Update, UpdateError, ranks_party
from tests.updates.rig import is_no_thread_left


class Rank:
    """A rank whose collective is a barrier of threads."""

    def __init__(self, number: int, barrier: threading.Barrier) -> None:
        self.number = number
        self.barrier = barrier
        self.calls: list[str] = []

    def collect(self, failing: int | None = None) -> int:
        self.calls.append("collect")
        if self.number == failing:
            raise ValueError(f"rank {failing} is out of memory")
        self.barrier.wait()
        return self.number

    async def collect_async(self) -> int:
        await asyncio.sleep(0)
        return self.number

    def leave(self) -> None:
        self.calls.append("leave")

    def kill_group(self) -> None:
        self.calls.append("kill_group")
        self.barrier.abort()


def ranks_of(count: int) -> list[Rank]:
    barrier = threading.Barrier(count)
    return [Rank(number, barrier) for number in range(count)]


def run(ranks: list[Rank], method: str, *args: Any, abort: bool = True) -> dict[str, Any]:
    party = ranks_party("trainer", ranks, abort=(lambda rank: rank.kill_group()) if abort else None)
    fleet = Fleet([party], step_timeout_s=20.0, abort_timeout_s=20.0, on_unrecoverable="raise")
    results: dict[str, Any] = {}

    async def flow(update: Update) -> None:
        results.update(
            await update.step(
                "collect",
                lambda p: getattr(p, method)(*args),
                finish=lambda p: p.leave(),
                abort=lambda p: p.kill_group(),
            )
        )

    asyncio.run(fleet.update(flow, version=1))
    return results


def test_all_ranks_enter_a_collective_together() -> None:
    ranks = ranks_of(4)
    assert run(ranks, "collect") == {"trainer": [0, 1, 2, 3]}
    assert [rank.calls for rank in ranks] == [["collect", "leave"]] * 4


def test_async_methods_of_ranks_are_awaited() -> None:
    assert run(ranks_of(2), "collect_async") == {"trainer": [0, 1]}


def test_a_rank_that_raises_releases_the_others_and_its_error_is_the_first() -> None:
    ranks = ranks_of(3)
    with pytest.raises(UpdateError, match="party 'trainer': ValueError: rank 1 is out of memory"):
        run(ranks, "collect", 1)
    assert [rank.calls.count("leave") for rank in ranks] == [1, 1, 1]
    assert "kill_group" in ranks[0].calls
    assert is_no_thread_left()


def test_a_cancelled_call_ends_when_the_calls_of_all_ranks_have_ended() -> None:
    barrier = threading.Barrier(3)
    ranks = [Rank(number, barrier) for number in range(2)]  # They wait for a third one.
    fleet = Fleet([ranks_party("trainer", ranks)], step_timeout_s=20.0, abort_timeout_s=20.0)

    async def flow(update: Update) -> None:
        await update.step("collect", lambda p: p.collect(), finish=lambda p: p.leave(), abort=lambda p: p.kill_group())

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fleet.update(flow, version=1))
        async with asyncio.timeout(20.0):
            while barrier.n_waiting < 2:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert [rank.calls.count("leave") for rank in ranks] == [1, 1]
