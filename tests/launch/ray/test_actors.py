"""What the actors answer, without Ray."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from torch.distributed import TCPStore

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.local import free_port
from ft_rendezvous.launch.ray import actors
from ft_rendezvous.launch.ray.actors import STOPPED, NodeActor, ProcessSpec, RunActor, find_failure, tail


def sleeping(folder: Path, seconds: float) -> ProcessSpec:
    return ProcessSpec(
        command=[sys.executable, "-c", f"import time; print('hello', flush=True); time.sleep({seconds})"],
        log=str(folder / "logs" / "node-0.log"),
    )


def test_a_question_for_the_end_takes_a_thread_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that has died leaves its question behind, and an actor has few threads."""
    monkeypatch.setattr(actors, "WAIT_S", 0.1)
    node = NodeActor()
    assert node.state() == "starting"
    assert "where" in node.start(sleeping(tmp_path, 60), "")
    assert node.wait() is None
    assert node.state() == "running"
    node.send_signal(15)
    monkeypatch.setattr(actors, "WAIT_S", 30.0)
    assert node.wait() == -15
    assert node.state() == "exited -15"
    assert node.last_words(5) == (str(tmp_path / "logs" / "node-0.log"), ["hello"])


def test_a_script_or_directory_that_is_missing_is_refused(tmp_path: Path) -> None:
    spec = sleeping(tmp_path, 0)
    assert "no_such.py does not exist" in NodeActor().start(spec, str(tmp_path / "no_such.py"))["refusal"]
    elsewhere = ProcessSpec(command=spec.command, log=spec.log, cwd=str(tmp_path / "gone"))
    assert "gone does not exist on" in NodeActor().start(elsewhere, "")["refusal"]


def test_one_driver_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = RunActor({"run_id": "r"}, "first")
    assert run.drive("second") == "first"
    now[0] += actors.DRIVER_LEASE_S - 1
    assert run.drive("first") == "first"
    now[0] += actors.DRIVER_LEASE_S - 1
    assert run.drive("second") == "first"
    now[0] += 1
    assert run.drive("second") == "second"
    assert run.drive("first") == "second", "the first one hears that it was displaced"
    run.release("second")
    assert run.drive("third") == "third"
    assert run.stop()
    assert run.drive("third") == STOPPED


def test_a_store_that_ends_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('the port is taken'); raise SystemExit(2)"]
    run = RunActor({"run_id": "r"}, "driver")
    refusal = run.serve(ProcessSpec(command=words, log=str(tmp_path / "store.log")), "127.0.0.1", free_port())
    assert refusal == "the store has ended at its start, with exit code 2: the port is taken"


def test_the_log_with_the_newest_failure_is_found(tmp_path: Path) -> None:
    log = tmp_path / "node-3.log"
    assert find_failure(log) == log
    worker = tmp_path / "node-3" / "cycle-2" / "1"
    worker.mkdir(parents=True)
    (worker / "stdout.log").write_text("step 1\n")
    (worker / "stderr.log").write_text("")
    (worker / "error.json").write_text("{}")
    assert find_failure(log) == worker / "stdout.log"
    (worker / "stderr.log").write_text("a\nb\nValueError: bad\n")
    assert find_failure(log) == worker / "stderr.log"
    assert tail(worker / "stderr.log", 2) == ["b", "ValueError: bad"]
    assert tail(tmp_path / "nowhere", 2) == []


def test_a_run_is_over_when_it_has_a_verdict_or_its_store_elsewhere_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    run = RunActor({"run_id": "r", "verdict_path": str(path)}, "driver")
    assert not run.is_over(), "it has no store yet"
    run.put({"endpoint": f"127.0.0.1:{free_port()}"})
    assert run.is_over(), "nothing listens there"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run.put({"endpoint": f"127.0.0.1:{store.port}"})
    assert not run.is_over()
    path.write_bytes(msgspec.json.encode(VerdictReport(run_id="r", verdict=VerdictKind.FAILED, reason="x", cycle=1)))
    assert run.is_over()
