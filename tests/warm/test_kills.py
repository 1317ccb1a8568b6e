"""No kill leaves a process behind, and none makes a script run twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.agent.worker_group import StartedWorkers, WorkerGroup
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.warm.client import parse_address
from ft_rendezvous.warm.nursery import MAX_STARTS, Nursery
from tests.agent.fake_link import FakeLink
from tests.support.torchrun_cluster import is_alive
from tests.support.waiting import wait_until
from tests.warm.stage import COLD_WARNING, Stage, Started

SLEEPS = "import os, time; print('ready', os.getpid(), os.getppid(), flush=True); time.sleep(600)"


def start_sleeper(stage: Stage) -> tuple[Started, int, int]:
    """A client, its worker and its guardian."""
    started = stage.start("-u", stage.script(SLEEPS))
    _, worker, guardian = started.wait_for("\n").split()
    return started, int(worker), int(guardian)


def test_a_signal_that_comes_when_the_worker_has_ended_does_not_change_its_end(light_stage: Stage) -> None:
    """The guardian has told the end, and is gone: the client can pass nothing on any more."""
    started, worker, guardian = start_sleeper(light_stage)
    os.kill(started.pid, signal.SIGSTOP)
    os.kill(worker, signal.SIGTERM)
    wait_until("the guardian ends", lambda: not is_alive(guardian))
    os.kill(started.pid, signal.SIGUSR1)
    os.kill(started.pid, signal.SIGCONT)
    assert started.wait() == -signal.SIGTERM


def test_the_client_is_killed(light_stage: Stage) -> None:
    started, worker, guardian = start_sleeper(light_stage)
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    wait_until("the worker and its guardian end", lambda: not is_alive(worker) and not is_alive(guardian))


def test_the_clients_group_is_killed_and_the_workers_children_with_it(light_stage: Stage) -> None:
    script = light_stage.script("import os, time\nif os.fork():\n    print('ready', flush=True)\ntime.sleep(600)")
    started = light_stage.start("-u", script)
    started.wait_for("ready")
    os.killpg(started.pid, signal.SIGKILL)
    light_stage.assert_nothing_left()


def test_the_worker_is_killed(light_stage: Stage) -> None:
    started, worker, _ = start_sleeper(light_stage)
    os.kill(worker, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    light_stage.assert_nothing_left()


def test_the_guardian_is_killed(light_stage: Stage) -> None:
    started, worker, guardian = start_sleeper(light_stage)
    os.kill(guardian, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    assert not is_alive(worker), "the client ends after its worker"


def test_new_workers_wait_for_the_end_of_those_before(light_stage: Stage) -> None:
    """Torch sees the end of a client that it has killed. The memory of a GPU is free when the worker has ended."""
    started, worker, guardian = start_sleeper(light_stage)
    link: Any = FakeLink()
    former = signal.getsignal(signal.SIGUSR1)
    group = WorkerGroup()
    group.set_place(link, Place(1, "0" * 16, 0, 1, "a", 1, None))
    group.started(StartedWorkers({0: started.pid}, {0: 0}, {0: ""}))
    is_left: list[bool] = []

    def go_on() -> None:
        group.set_place(link, Place(2, "0" * 16, 0, 1, "a", 1, None))
        is_left.append(is_alive(worker))

    os.kill(guardian, signal.SIGSTOP)  # The worker takes long to end.
    try:
        group.stop_watch()
        started.process.kill()
        started.wait()
        next_place = threading.Thread(target=go_on)
        next_place.start()
        next_place.join(1)
    finally:
        os.kill(guardian, signal.SIGCONT)
    next_place.join(60)
    group.end()
    signal.signal(
        signal.SIGUSR1, former
    )  # An agent that has ended ignores it, and so would the workers of other tests.
    assert is_left == [False]


def test_the_client_and_the_guardian_are_killed(light_stage: Stage) -> None:
    started, worker, guardian = start_sleeper(light_stage)
    for pid in (guardian, started.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until("the worker ends", lambda: not is_alive(worker))


def test_the_nursery_is_killed_and_no_worker_notices(light_stage: Stage) -> None:
    started, worker, _ = start_sleeper(light_stage)
    nursery = light_stage.nursery.pid
    assert nursery is not None
    os.kill(nursery, signal.SIGKILL)
    late = light_stage.run("print('late')")
    assert (late.wait(), late.text) == (0, "late\n")
    assert COLD_WARNING in late.error_text
    assert is_alive(worker)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait() == -signal.SIGTERM


def test_a_nursery_that_has_ended_is_replaced_and_not_for_ever(
    light_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery = light_stage.nursery
    monkeypatch.setattr("os.environ", light_stage.environment)
    for _ in range(MAX_STARTS - 1):
        _kill_nursery(light_stage)
        nursery.keep()
        started = light_stage.run("print('ran')")
        assert (started.text, started.error_text) == ("ran\n", "")
    _kill_nursery(light_stage)
    nursery.keep()
    assert nursery.pid is None
    assert "workers start cold from now on" in caplog.text
    nursery.keep()


def _kill_nursery(stage: Stage) -> None:
    pid = stage.nursery.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until("the nursery ends", lambda: not is_alive(pid))


def test_a_client_that_is_slow_does_not_keep_the_socket_of_a_nursery_that_has_ended(
    light_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guardian waits for the request. Other clients would wait for the end of that, and no nursery could follow."""
    light_stage.run("pass")
    monkeypatch.setattr("os.environ", light_stage.environment)
    name, _, _ = parse_address(light_stage.nursery.address)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect("\0" + name[1:])
        wait_until("the guardian is there", lambda: bool(light_stage.left_processes()))
        _kill_nursery(light_stage)
        late = light_stage.run("print('late')")
        assert (late.text, COLD_WARNING in late.error_text) == ("late\n", True)
        assert light_stage.left_processes(), "the guardian still waits"
        light_stage.nursery.keep()
        started = light_stage.run("print('ran')")
        assert (started.text, started.error_text) == ("ran\n", "")


def test_a_nursery_that_could_not_be_replaced_is_replaced_later(
    light_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", light_stage.environment)
    name, _, _ = parse_address(light_stage.nursery.address)
    _kill_nursery(light_stage)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0" + name[1:])
        light_stage.nursery.keep()
        assert light_stage.run("print('ran')").text == "ran\n"
    light_stage.nursery.keep()
    started = light_stage.run("print('ran')")
    assert (started.text, started.error_text) == ("ran\n", "")


@pytest.mark.parametrize("victim", ["nursery", "all forks", "client"])
def test_a_kill_at_every_moment_of_a_fork(tmp_path: Path, victim: str) -> None:
    """The script runs at most once. It does run if only the nursery was killed, and the exit code says so."""
    from tests.warm.stage import open_stage  # noqa: PLC0415

    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_stage(folder, modules=()) as stage:
            stage.run("pass")  # The nursery is ready.
            mark = folder / "ran"
            script = stage.script(f"open({str(mark)!r}, 'a').write('x')")
            started = stage.start("-u", script)
            time.sleep(0.012 + 0.0012 * number)  # A client starts in 15 ms here, a fork takes 10 ms.
            if victim == "client":
                started.process.kill()
            elif victim == "nursery":
                _kill_nursery(stage)
            else:
                for pid in (*stage.left_processes(), stage.nursery.pid or 0):
                    if pid not in (started.pid, 0):
                        try:
                            os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError:
                            continue
            code = started.wait()
            runs = len(mark.read_text()) if mark.exists() else 0
            stage.assert_nothing_left()
            if victim == "nursery":
                assert (code, runs) == (0, 1), started.error_text
            else:
                assert code in (0, -signal.SIGKILL)
                assert runs == 1 if code == 0 else runs <= 1


@pytest.mark.parametrize(("hard", "soft"), [("-1", 1), ("0", 0)])
def test_the_client_of_a_worker_that_crashed_leaves_no_second_core(hard: str, soft: int) -> None:
    """The kernel pays no regard to a limit of 0 where a program takes the core files, and to a limit of 1 it does."""
    code = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, ({hard}, {hard}))\n"
        "from ft_rendezvous.warm.client import end_like\n"
        "os.kill = lambda *_: print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)\n"
        "end_like(11)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{soft}\n", done.stderr


def test_the_nursery_ends_with_its_agent() -> None:
    """However the agent ends: here without a word, and with no reaper."""
    code = (
        "import sys, time; from ft_rendezvous.warm.nursery import Nursery\n"
        "print(Nursery('some-marker', ()).pid, flush=True); time.sleep(600)"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert is_alive(pid)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    wait_until("the nursery ends", lambda: not is_alive(pid))


def test_a_python_without_pidfds_has_no_nursery(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was built with old headers. The agent starts its workers cold then."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(OSError, match="pidfd_open"):
        Nursery("some-marker", ())
