"""What the driver says while it runs."""

from __future__ import annotations

from collections.abc import Iterable

from ft_rendezvous.launch.ray.machine import (
    NodeDied,
    NodeExited,
    NodePlaced,
    NodeStarted,
    NodeUnavailable,
    Observation,
    RayMachine,
    RunIsOver,
)
from ft_rendezvous.launch.ray.progress import INTERVAL_S, NAMED_NODES, NodeProgress

BEGIN = 1000.0


class Told:
    """A run, and what was said of it. Each step is told at once."""

    def __init__(self, count: int = 2) -> None:
        self.machine = RayMachine(1, count, BEGIN)
        self.lines: list[str] = []
        self.free = {"CPU": 3.0}
        self.progress = NodeProgress(self.machine, {"CPU": 4.0, "GPU": 1.0}, self.lines.append, lambda: self.free)

    def after(self, seen: Iterable[Observation], now: float) -> list[str]:
        """What is said after one step."""
        self.lines.clear()
        self.machine.step(seen, now)
        self.progress.tell(now)
        return self.lines


def test_every_change_is_said_once() -> None:
    run = Told(1)
    assert run.after([], BEGIN) == []
    assert run.after([NodePlaced(0, "10.0.0.1")], BEGIN) == ["node 0 is starting"]
    assert run.after([NodePlaced(0, "10.0.0.1")], BEGIN) == []
    assert run.after([NodeStarted(0, 1, "a pid 7")], BEGIN) == ["node 0 is running: a pid 7"]
    assert run.after([NodeUnavailable(0, 1)], BEGIN) == ["node 0 is suspect"]
    assert run.after([NodeUnavailable(0, 1)], BEGIN) == []
    assert run.after([NodeDied(0, 1, "the machine is gone")], BEGIN) == ["node 0 is lost: the machine is gone"]


def test_an_exit_is_said_with_its_code() -> None:
    run = Told(2)
    run.after([NodePlaced(0, "a"), NodePlaced(1, "b")], BEGIN)
    run.after([NodeStarted(0, 1), NodeStarted(1, 1)], BEGIN)
    assert run.after([NodeExited(0, 1, 3)], BEGIN) == ["node 0 is failed: torchrun exited 3"]
    assert run.after([NodeExited(1, 1, 0)], BEGIN) == ["node 1 is finished"]


def test_a_reason_is_not_repeated_when_the_node_starts_again() -> None:
    run = Told(1)
    run.after([NodePlaced(0, "a")], BEGIN)
    run.after([NodeDied(0, 1, "why")], BEGIN)
    assert run.after([NodePlaced(0, "b")], BEGIN + 5) == ["node 0 is starting"]


def test_from_time_to_time_it_is_said_which_nodes_wait_for_what() -> None:
    run = Told(3)
    run.after([NodePlaced(0, "a")], BEGIN)
    assert run.after([NodeStarted(0, 1)], BEGIN + 0.5) == ["node 0 is running: a"], "others may be placed in a moment"
    waiting = (
        "waiting for Ray to place 2 of 3 nodes (1, 2) since {} s: "
        "each needs 4 CPU, 1 GPU, the cluster has 3 CPU, 0 GPU free"
    )
    assert run.after([], BEGIN + 2) == [waiting.format(2)]
    assert run.after([], BEGIN + 2 + INTERVAL_S - 0.1) == []
    assert run.after([], BEGIN + 2 + INTERVAL_S) == [waiting.format(12)]


def test_a_lost_node_waits_since_it_was_lost() -> None:
    run = Told(1)
    run.after([NodePlaced(0, "a")], BEGIN)
    run.after([NodeDied(0, 1)], BEGIN + 100)
    (line,) = run.after([], BEGIN + 125)
    assert "1 of 1 nodes (0) since 25 s" in line


def test_of_many_nodes_only_some_are_named() -> None:
    run = Told(NAMED_NODES + 1)
    assert (
        f"{NAMED_NODES + 1} of {NAMED_NODES + 1} nodes (0, 1, 2, 3, 4, 5, 6, 7 ...)"
        in run.progress.describe_waiting(BEGIN)
    )


def test_who_waits_is_not_said_when_none_does_or_the_run_has_ended() -> None:
    run = Told(1)
    run.after([NodePlaced(0, "a")], BEGIN)
    assert run.after([], BEGIN + 50) == []
    run = Told(2)
    run.after([NodePlaced(0, "a")], BEGIN)
    assert run.after([RunIsOver()], BEGIN + 50) == []
