"""Real processes under a guard: none outlives its actor, its guard or its leader."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.agent.processes import open_pidfd
from ft_rendezvous.agent.reaper_main import end_carriers, find_carriers
from ft_rendezvous.launch.ray import guard
from ft_rendezvous.launch.ray.actors import PYTHON, GuardedProcess, ProcessSpec
from ft_rendezvous.launch.ray.guard import NODE_VARIABLE, guard_process
from tests.support.waiting import wait_until

WAITS = """
import pathlib, signal, sys
for signum in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(signum, lambda signum, _: sys.exit(signum))
pathlib.Path("ready").touch()
signal.pause()
"""
STUBBORN = """
import pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("ready").touch()
signal.pause()
"""
FAMILY = """
import pathlib, signal, subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("ready").touch()
signal.pause()
"""
LEAVES_ONE = """
import pathlib, subprocess
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("left").write_text(str(left.pid))
raise SystemExit(4)
"""
OWNER = """
import json, sys
from ft_rendezvous.launch.ray.actors import GuardedProcess, ProcessSpec
process = GuardedProcess(ProcessSpec(**json.loads(sys.argv[1])))
print(process.pid, flush=True)
sys.stdin.read()
"""
"""Ends when its standard input is closed."""


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@dataclass
class Machine:
    """A place for processes, and the means to find what is left of them."""

    place: Path
    marks: list[bytes] = field(default_factory=list)
    guards: list[int] = field(default_factory=list)

    def spec(self, script: str, **changes: Any) -> ProcessSpec:
        words = {
            "command": [PYTHON, "-c", script],
            "log": str(self.place / "logs" / "node.log"),
            "cwd": str(self.place),
        }
        return ProcessSpec(**{**words, **changes})

    def start(self, script: str, **changes: Any) -> GuardedProcess:
        process = GuardedProcess(self.spec(script, **changes))
        self.remember(process.pid)
        return process

    def start_waiting(self, script: str = WAITS) -> GuardedProcess:
        """Start a process, and wait until it is ready for signals."""
        process = self.start(script)
        self.await_ready()
        return process

    def await_ready(self) -> None:
        wait_until("the process is ready", (self.place / "ready").exists)

    def remember(self, pid: int) -> None:
        """Note how to find the guard of a process and all that the process starts. It may have ended already."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            self.guards.append(parent_of(pid))
        except OSError:
            return
        self.marks += [entry for entry in environment if entry.startswith(NODE_VARIABLE.encode() + b"=")]

    def left(self) -> list[int]:
        found = [pid for mark in self.marks for pid in find_carriers(mark)]
        return found + [pid for pid in self.guards if is_alive(pid)]

    def await_nothing_left(self) -> None:
        wait_until("all processes are gone", lambda: not self.left(), 30.0, lambda: str(self.left()))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    try:
        yield machine
        machine.await_nothing_left()
    finally:
        for mark in machine.marks:
            end_carriers(mark)


# --- a process and its guard --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("", 0), ("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_the_exit_code_arrives(machine: Machine, script: str, code: int) -> None:
    process = machine.start(script)
    assert process.wait(60) == code
    assert process.wait(0) == code, "also later"


def test_a_process_starts_as_it_was_specified(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    script = "import os, sys; print(os.getcwd(), os.environ['A'], 'SLURM_PROCID' in os.environ, sys.executable)"
    process = machine.start(script, env={"A": "b"}, unset=["SLURM_PROCID"])
    assert process.wait(60) == 0
    log = machine.place / "logs" / "node.log"
    assert log.read_text() == f"{machine.place} b False {sys.executable}\n"


def test_a_log_is_continued(machine: Machine) -> None:
    for _ in range(2):
        assert machine.start("print('line')").wait(60) == 0
    assert (machine.place / "logs" / "node.log").read_text() == "line\nline\n"


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_is_passed_on(machine: Machine, signum: signal.Signals) -> None:
    process = machine.start_waiting()
    assert process.wait(0.1) is None
    process.send_signal(signum)
    assert process.wait(60) == signum


def test_a_signal_to_a_process_that_has_ended_is_nothing(machine: Machine) -> None:
    process = machine.start("")
    assert process.wait(60) == 0
    process.send_signal(signal.SIGTERM)
    machine.await_nothing_left()
    process._ended.clear()  # As if the answer of the guard were still on its way.
    process.send_signal(signal.SIGTERM)


def test_signals_do_not_end_a_guard(machine: Machine) -> None:
    """Whoever ends Ray's session sends them to every process that he finds."""
    process = machine.start_waiting()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(machine.guards[0], signum)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == signal.SIGUSR1


def test_a_guard_is_no_child_of_the_actor_and_not_in_its_session(machine: Machine) -> None:
    process = machine.start_waiting()
    (pid,) = machine.guards
    assert parent_of(pid) != os.getpid()
    assert os.getsid(pid) != os.getsid(0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == signal.SIGTERM


def test_what_a_process_leaves_behind_is_gone_when_its_exit_code_arrives(machine: Machine) -> None:
    process = machine.start(LEAVES_ONE)
    assert process.wait(60) == 4
    assert not is_alive(int((machine.place / "left").read_text()))


def test_the_end_of_one_node_is_not_the_end_of_another(machine: Machine) -> None:
    stays = machine.start_waiting()
    assert machine.start(LEAVES_ONE).wait(60) == 4
    assert stays.wait(0) is None
    assert is_alive(stays.pid)
    stays.send_signal(signal.SIGTERM)
    assert stays.wait(60) == signal.SIGTERM


def test_a_command_that_does_not_exist_is_an_error(machine: Machine) -> None:
    with pytest.raises(OSError, match="no-such-program: No such file or directory"):
        machine.start("", command=["no-such-program"])


def test_a_directory_that_does_not_exist_is_an_error(machine: Machine) -> None:
    with pytest.raises(OSError, match=f"{machine.place}/nowhere: No such file or directory"):
        machine.start("", cwd=str(machine.place / "nowhere"))


def test_a_log_that_cannot_be_written_is_an_error(machine: Machine) -> None:
    with pytest.raises(OSError, match=f"{machine.place}: Is a directory"):
        machine.start("", log=str(machine.place))


# --- deaths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["killed", "exits"])
def test_when_the_actor_is_gone_its_process_and_all_that_it_started_end(machine: Machine, way: str) -> None:
    words = json.dumps(vars(machine.spec(FAMILY)))
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        machine.remember(pid)
        machine.await_ready()
        family = find_carriers(machine.marks[0])
        assert len(family) == 3, "the process and its two children"
        assert len({os.getsid(member) for member in family}) == 3, "no session ends them"
        if way == "killed":
            owner.kill()
        else:
            owner.stdin.close()
        assert owner.wait(60) == (-signal.SIGKILL if way == "killed" else 0)
    machine.await_nothing_left()


def test_when_the_guard_is_killed_its_process_ends(machine: Machine) -> None:
    process = machine.start_waiting()
    os.kill(machine.guards[0], signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    wait_until("the process has ended", lambda: not is_alive(process.pid))


class Guarding:
    """A guard in a thread of this process, and its actor."""

    def __init__(self, machine: Machine, script: str) -> None:
        self.actor = subprocess.Popen(["sleep", "600"])
        self.control, guards_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spec = vars(machine.spec(script, command=[sys.executable, "-c", script])) | {"marker": str(machine.place)}
        Path(spec["log"]).parent.mkdir()
        self.thread = threading.Thread(target=self._run, args=(spec, guards_end))
        self.thread.start()
        machine.marks.append(f"{NODE_VARIABLE}={machine.place}".encode())
        machine.await_ready()

    def _run(self, spec: dict[str, Any], guards_end: socket.socket) -> None:
        actor_fd = open_pidfd(self.actor.pid)
        with guards_end:
            guard_process(spec, actor_fd, guards_end)
        os.close(actor_fd)

    def end(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.control.close()
        self.actor.kill()
        self.actor.wait()


def test_a_process_that_does_not_end_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "END_GRACE_S", 0.2)
    guarding = Guarding(machine, STUBBORN)
    guarding.actor.kill()
    guarding.actor.wait()
    guarding.thread.join(60)
    assert json.loads(guarding.control.recv(1000)).keys() == {"started"}
    assert json.loads(guarding.control.recv(1000)) == {"exited": -signal.SIGKILL}
    guarding.end()


def test_an_actor_that_hangs_up_without_a_word_is_gone(machine: Machine) -> None:
    """It has not even read that the process was started, so the guard sees a connection that was reset."""
    guarding = Guarding(machine, FAMILY)
    assert select.select([guarding.control], [], [], 60)[0]
    guarding.control.close()
    guarding.thread.join(60)
    machine.await_nothing_left()
    guarding.end()
