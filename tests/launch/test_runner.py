"""Real processes under a plan: signals, ends, verdicts, and the endpoint that an array's tasks share."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.verdict_file import VerdictReport, write_verdict
from ft_rendezvous.launch import runner
from ft_rendezvous.launch.plan import LaunchedRun, Plan, Process
from ft_rendezvous.launch.runner import PlanRunner, await_endpoint, is_over, read_verdict
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen


def plan_of(place: Path, *scripts: str, store: str | None = None, publishes: Path | None = None) -> Plan:
    def process(name: str, script: str) -> Process:
        return Process(
            name=name, command=(sys.executable, "-c", script), env={"MARK": name}, log=place / "logs" / f"{name}.log"
        )

    run = LaunchedRun(
        run_id="r",
        min_nodes=1,
        node_count=len(scripts),
        max_nodes=len(scripts),
        endpoint="localhost:1",
        log_dir=place / "logs",
        conf={},
        verdict_path=place / "logs" / "verdict.json",
        join_s=1.0,
    )
    nodes = tuple(process(f"node {number}", script) for number, script in enumerate(scripts))
    return Plan(run=run, nodes=nodes, store=process("store", store) if store else None, publishes=publishes)


def report(run_id: str) -> VerdictReport:
    return VerdictReport(run_id=run_id, verdict=VerdictKind.FAILED, reason="why", cycle=2)


def test_every_node_is_waited_for_and_writes_its_own_log(tmp_path: Path) -> None:
    ended = PlanRunner(plan_of(tmp_path, "import os; print(os.environ['MARK'])", "raise SystemExit(4)")).run()
    assert list(ended.exit_codes) == [0, 4]
    assert ended.report is None
    assert (tmp_path / "logs" / "node 0.log").read_text() == "node 0\n"


def test_a_failed_node_is_named_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PlanRunner(plan_of(tmp_path, "", "raise SystemExit(4)")).run()
    assert f"node 1 exited 4, its log is {tmp_path}/logs/node 1.log" in capsys.readouterr().err


WAITS = (
    "import signal, sys, pathlib; "
    "[signal.signal(n, lambda n, _: sys.exit(n)) for n in (signal.SIGUSR1, signal.SIGTERM)]; "
    "pathlib.Path(r'{place}/ready').touch(); signal.pause()"
)


def poke(place: Path, *signals: int) -> threading.Thread:
    """Send ourselves signals, one after the other, once the node catches them."""

    def run() -> None:
        deadline = time.monotonic() + 20
        while not (place / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for signum in signals:
            os.kill(os.getpid(), signum)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_signals_are_passed_on_and_remembered(tmp_path: Path, signum: signal.Signals) -> None:
    poker = poke(tmp_path, signum)
    ended = PlanRunner(plan_of(tmp_path, WAITS.format(place=tmp_path))).run()
    poker.join()
    assert list(ended.exit_codes) == [signum]
    assert list(ended.signals) == [signum]


def test_where_a_command_ends_the_nodes_it_is_run_instead(tmp_path: Path) -> None:
    """And no longer than they are there: scancel tries again while SLURM requeues a job, and ends its next life."""
    write = f"open(r'{tmp_path}/asked', 'w').write(str(os.getpid()))"
    command = (sys.executable, "-c", f"import os, signal; {write}; signal.pause()")
    plan = dataclasses.replace(plan_of(tmp_path, WAITS.format(place=tmp_path)), end_command=command)
    poker = poke(tmp_path, signal.SIGTERM)

    def then_drain() -> None:
        deadline = time.monotonic() + 20
        while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    drainer = threading.Thread(target=then_drain)
    drainer.start()
    ended = PlanRunner(plan).run()
    poker.join()
    drainer.join()
    assert list(ended.exit_codes) == [signal.SIGUSR1], "the node itself was not sent SIGTERM"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "asked").read_text()), 0)


def test_a_node_that_hangs_after_the_end_does_not_hold_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "NODE_EXIT_TIMEOUT_S", 0.3)
    (tmp_path / "logs").mkdir()
    write_verdict(tmp_path / "logs" / "verdict.json", report("r"))
    ended = PlanRunner(plan_of(tmp_path, "import signal; signal.pause()")).run()
    assert list(ended.exit_codes) == [-signal.SIGKILL]
    assert ended.report is not None
    assert "a node has not ended: killing it" in capsys.readouterr().err


@pytest.mark.parametrize("has_begun", [True, False])
def test_whether_any_worker_was_started_shows_in_the_logs(tmp_path: Path, has_begun: bool) -> None:
    if has_begun:
        (tmp_path / "logs" / "node-0" / "cycle-1").mkdir(parents=True)
    assert PlanRunner(plan_of(tmp_path, "raise SystemExit(1)")).run().has_begun is has_begun


def test_the_verdict_is_read_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write_verdict(tmp_path / "logs" / "verdict.json", report("r"))
    ended = PlanRunner(plan_of(tmp_path, "")).run()
    assert ended.report is not None
    assert ended.report.reason == "why"


def test_a_verdict_of_another_run_or_half_of_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    assert read_verdict(path, "r") is None
    write_verdict(path, report("another"))
    assert read_verdict(path, "r") is None
    path.write_text('{"run_id": "r", "verd')
    assert read_verdict(path, "r") is None


def test_a_store_that_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STORE_EXIT_TIMEOUT_S", 0.2)
    started = PlanRunner(plan_of(tmp_path, "", store="import signal; signal.pause()"))
    started.run()
    assert started.store is not None
    assert started.store.returncode == -signal.SIGTERM


def test_a_hosting_task_forgets_an_earlier_verdict_and_publishes_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write_verdict(tmp_path / "logs" / "verdict.json", report("r"))
    published = tmp_path / "logs" / "endpoint"
    script = f"print(open(r'{published}').read().strip())"
    ended = PlanRunner(plan_of(tmp_path, script, publishes=published)).run()
    assert (tmp_path / "logs" / "node 0.log").read_text() == "localhost:1\n"
    assert ended.report is None
    assert not published.exists()


def test_a_program_that_is_not_there_ends_what_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = plan_of(tmp_path, "import signal; signal.pause()", "")
    missing = Process(name="node 1", command=("no-such-program",))
    broken = PlanRunner(Plan(run=plan.run, nodes=(plan.nodes[0], missing)))
    with pytest.raises(ConfigError, match="'no-such-program' is not in PATH"):
        broken.run()
    assert broken.nodes[0].returncode == -signal.SIGTERM


def test_a_program_that_this_user_may_not_run_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "not-executable"
    program.write_text("#!/bin/sh")
    program.chmod(0o644)
    plan = plan_of(tmp_path, "")
    forbidden = Process(name="node 0", command=(str(program),))
    with pytest.raises(ConfigError, match="this user may not run"):
        PlanRunner(Plan(run=plan.run, nodes=(forbidden,))).run()


def test_a_log_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ConfigError, match="pass another --log-dir"):
        PlanRunner(plan_of(tmp_path, "")).run()


# --- the endpoint of a job array --------------------------------------------------------------------


def test_an_endpoint_counts_once_a_store_is_there(tmp_path: Path) -> None:
    """A file that a dead task left behind names a port at which nothing listens."""
    path = tmp_path / "endpoint"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        path.write_text(f"localhost:{free.getsockname()[1]}\n")
    with pytest.raises(ConfigError, match="has the array's first task started"):
        await_endpoint(path, 0.2, lambda: False)
    listener = listen(0)
    endpoint = f"localhost:{listener.getsockname()[1]}"
    served = ServedStore(listener)
    try:
        path.write_text(f"{endpoint}\n")
        assert await_endpoint(path, 10.0, lambda: False) == endpoint
    finally:
        served.stop()


def test_no_task_waits_for_the_store_of_a_run_that_is_over(tmp_path: Path) -> None:
    assert await_endpoint(tmp_path / "endpoint", 3600.0, lambda: True) is None


@pytest.mark.parametrize(
    ("kind", "is_retryable", "over"),
    [("succeeded", False, True), ("failed", False, True), ("failed", True, False), ("cancelled", True, False)],
)
def test_a_run_that_may_be_queued_again_is_not_over(tmp_path: Path, kind: str, is_retryable: bool, over: bool) -> None:
    plan = plan_of(tmp_path, "")
    assert not is_over(plan.run)
    verdict = VerdictReport(run_id="r", verdict=VerdictKind(kind), reason="", is_retryable=is_retryable, cycle=1)
    write_verdict(plan.run.verdict_path, verdict)
    assert is_over(plan.run) is over
