"""`ftr demo`: once for real, and its judgement on stories that went otherwise."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from ft_rendezvous.cli.demo import command
from ft_rendezvous.cli.demo.display import PlainDisplay
from ft_rendezvous.cli.demo.promises import DemoStory, judge_demo, list_facts
from ft_rendezvous.cli.demo.step_reports import StepReport
from ft_rendezvous.launch.plan import Process
from ft_rendezvous.launch.runner import start_process
from tests.cli.conftest import Shell

STEPS = 40


@pytest.mark.timeout(240)
def test_a_killed_node_is_replaced_and_training_finishes(shell: Shell) -> None:
    done = shell.ftr("demo", "--dir", shell.place / "demo", timeout_s=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the demo succeeded" in done.stdout
    assert "cycle 2: node-3 took rank 1 from node-1" in done.stdout
    resumed = re.search(r"cycle 2: resumed at step (\d+)", done.stdout)
    assert resumed is not None
    assert 0 < int(resumed[1]) < STEPS
    assert re.search(r"from the kill to the first new step: \d+\.\d s", done.stdout)
    assert "workers started warm" in done.stdout
    assert "FAIL" not in done.stdout
    assert not re.search(r"[^\x20-\x7e\n]", done.stdout), "control characters without a terminal"
    assert (shell.place / "demo" / "checkpoint.pt").exists()
    assert (shell.place / "demo" / "logs" / "node-1.log").exists()
    assert "node-1 (rank 1) is fenced" in done.stdout
    assert re.search(r"cycle 2 is sealed .*; node-0 has rank 0, node-3 has rank 1, node-2 has rank 2", done.stdout)
    assert shell.left_after_a_moment() == []


@pytest.mark.timeout(120)
def test_a_demo_that_is_interrupted_leaves_nothing(shell: Shell) -> None:
    demo = shell.start_ftr("demo")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "node-0 joins" in line:
            break
    demo.send_signal(signal.SIGTERM)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 143
    assert "every process of the demo has been ended" in errors
    assert shell.left_after_a_moment() == []


def test_a_process_is_ended_although_a_signal_interrupts_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_and_interrupt(process: Process) -> NoReturn:
        started.append(start_process(process))
        raise SystemExit(143)

    monkeypatch.setattr(command, "start_process", start_and_interrupt)
    options = command.DemoOptions(actives=1, spares=0, steps=STEPS, lease_s=3.0, kills=False, timeout_s=60.0)
    demo = command.Demo(options, tmp_path, PlainDisplay())
    try:
        with pytest.raises(SystemExit):
            demo.run()
        assert demo.end_all() == []
        assert started[0].wait(5.0) == -signal.SIGKILL
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.timeout(120)
def test_a_demo_that_takes_too_long_fails_and_shows_the_logs(shell: Shell) -> None:
    done = shell.ftr("demo", "--timeout", "1", "--dir", shell.place / "demo", timeout_s=90)
    assert done.returncode == 1
    assert "the demo did not end within 1 s" in done.stdout
    assert f"the end of {shell.place / 'demo' / 'logs' / 'node-0.log'}" in done.stdout
    assert shell.left_after_a_moment() == []


# --- judgement --------------------------------------------------------------------------------------


def report(node: int, rank: int, cycle_id: int, step: int, resumed_at: int = 0) -> StepReport:
    time_ns = (100 * cycle_id + step) * 10**9
    return StepReport(
        node=f"node-{node}", cycle_id=cycle_id, rank=rank, step=step, resumed_at=resumed_at, time_ns=time_ns
    )


def recovered(heirs: dict[int, int], resumed_at: int = 10, drift: float = 0.0) -> DemoStory:
    """Nodes 0, 1, 2 train, 1 is killed at step 12, and `heirs` (node by rank) go on to the end."""
    story = DemoStory(STEPS)
    for rank in range(3):
        story.take_report(report(rank, rank, 1, 12))
    story.take_kill("node-1", 113 * 10**9)
    story.sealed_ns[2] = 115 * 10**9
    for rank, node in heirs.items():
        story.take_report(report(node, rank, 2, resumed_at + 1, resumed_at))
        last = report(node, rank, 2, STEPS, resumed_at)
        story.take_report(msgspec.structs.replace(last, drift=drift if rank == 0 else None))
    story.exit_codes = {"node-0": 0, "node-1": -9, "node-2": 0, "node-3": 0}
    return story


def broken_promises(story: DemoStory, left: list[int] | None = None) -> list[str]:
    return [promise.text for promise in judge_demo(story, 3, True, left or []) if not promise.is_kept]


def test_the_promised_story_is_accepted() -> None:
    story = recovered({0: 0, 1: 3, 2: 2})
    assert broken_promises(story) == []
    assert list_facts(story) == [
        "cycles: 2",
        "cycle 2: node-3 took rank 1 from node-1",
        "cycle 2: resumed at step 10",
        "from the kill to the first new step: 98.0 s, 2.0 s of it until every rank was placed again",
    ]


def test_ranks_that_moved_are_noticed() -> None:
    assert broken_promises(recovered({0: 0, 1: 2, 2: 3})) == ["a hot spare took rank 1", "the others kept their ranks"]


def test_a_start_from_nothing_is_noticed() -> None:
    assert broken_promises(recovered({0: 0, 1: 3, 2: 2}, resumed_at=0)) == ["training resumed from a checkpoint"]


def test_other_weights_are_noticed() -> None:
    story = recovered({0: 0, 1: 3, 2: 2}, drift=0.01)
    assert broken_promises(story) == ["the final weights are those of an undisturbed run"]


def test_a_run_that_never_came_back_is_noticed() -> None:
    assert "a hot spare took rank 1" in broken_promises(recovered({}))


def test_a_survivor_that_failed_and_a_process_that_is_left_are_noticed() -> None:
    story = recovered({0: 0, 1: 3, 2: 2})
    story.exit_codes["node-2"] = 1
    assert broken_promises(story, left=[4711]) == ["every remaining node exited 0", "no process is left"]


def test_a_kill_that_never_came_is_noticed() -> None:
    story = DemoStory(STEPS)
    assert broken_promises(story)[0] == "a node was killed"
