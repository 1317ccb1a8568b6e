"""A killed agent leaves no workers behind; an agent that ends in order leaves what it likes."""

from __future__ import annotations

import errno
import gc
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ft_rendezvous.agent import reaper_main
from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.env_names import MARKER_VARIABLE
from tests.agent.process_stage import ProcessStage, open_fds, wait_for_end, wait_for_zombie
from tests.support.torchrun_cluster import find_processes, is_alive, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("stage")

SLEEPS = ("sleep", "600")
FORKS = ("sh", "-c", "i=0; while [ $i -lt 300 ]; do setsid sleep 600 & i=$((i+1)); sleep 0.01; done; wait")
OUTLIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def marker() -> str:
    return secrets.token_hex(8)


def entries_of(pid: int, variable: str) -> list[str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return [entry for entry in entries if entry.startswith(f"{variable}=")]


# --- a killed agent ---------------------------------------------------------------------------------


def test_the_workers_of_a_killed_agent_die_and_no_others(stage: ProcessStage, marker: str) -> None:
    # A marker that only begins like the other's is another.
    other = stage.start_agent(f"{marker}0", *SLEEPS)
    agent = stage.start_agent(marker, *SLEEPS)
    agent.kill()
    wait_for_end(*agent.workers, agent.reaper)
    assert all(is_alive(pid) for pid in (*other.workers, other.reaper))


def test_a_worker_that_is_forking_dies_with_all_its_forks(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, *FORKS)

    def living() -> list[int]:
        return [process.pid for process in find_processes(stage.name) if "sleep 600" in process.command]

    wait_until("several forks", lambda: len(living()) > 10)
    agent.kill()
    wait_for_end(agent.reaper)
    wait_until("no fork is left", lambda: not living())
    assert not any(map(is_alive, agent.workers))


def test_forks_of_a_killed_agent_die_with_their_forks(stage: ProcessStage, marker: str) -> None:
    """The environment that the system shows for a fork is the one of the agent: it has no marker."""
    agent = stage.start_agent(marker, "fork")

    def forks() -> list[int]:
        return [each.pid for each in find_processes(stage.name) if "agent_process.py" in each.command]

    wait_until("two workers and a fork of each", lambda: len(forks()) == 5)
    agent.kill()
    wait_for_end(*agent.workers, agent.reaper)
    assert forks() == []


def test_a_dismissed_agent_leaves_its_forks(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, "fork")
    agent.tell("dismiss")
    agent.kill()
    assert all(map(is_alive, agent.workers))


def test_the_reaper_outlives_every_polite_signal_from_its_start_on(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, *SLEEPS)
    for signum in OUTLIVED:
        os.kill(agent.reaper, signum)
    agent.tell("live on")
    assert is_alive(agent.reaper)
    agent.kill()
    wait_for_end(*agent.workers, agent.reaper)


def test_an_agent_that_ends_without_dismissing_its_reaper_counts_as_killed(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, *SLEEPS)
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.process.wait() == 0
    wait_for_end(*agent.workers, agent.reaper)


def test_one_scan_without_a_carrier_is_not_the_end(
    stage: ProcessStage, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is not seen while it is being started."""
    carriers = [stage.start(SLEEPS, {MARKER_VARIABLE: marker}) for _ in range(2)]
    scans = iter([[], [carriers[0].pid], [], [carriers[1].pid], [], []])
    monkeypatch.setattr(reaper_main, "_other_processes", lambda: next(scans))
    monkeypatch.setattr(reaper_main, "REAP_TIMEOUT_S", 120)
    reaper_main.end_carriers(f"{MARKER_VARIABLE}={marker}".encode())
    assert [carrier.wait() for carrier in carriers] == [-signal.SIGKILL] * 2
    assert list(scans) == []


def test_a_process_that_does_not_die_is_given_up(
    stage: ProcessStage, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = stage.start(SLEEPS, {MARKER_VARIABLE: marker})
    monkeypatch.setattr(reaper_main, "REAP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(reaper_main, "_kill", lambda *_: None)
    reaper_main.end_carriers(f"{MARKER_VARIABLE}={marker}".encode())
    assert is_alive(carrier.pid)


def test_a_process_that_got_the_id_of_a_carrier_is_spared(stage: ProcessStage, marker: str) -> None:
    stranger = stage.start(SLEEPS)
    reaper_main._kill(stranger.pid, f"{MARKER_VARIABLE}={marker}".encode())
    stranger.terminate()  # A SIGKILL would have come first.
    assert stranger.wait() == -signal.SIGTERM


# --- an orderly end ---------------------------------------------------------------------------------


def test_what_a_dismissed_agent_leaves_lives_on(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, *SLEEPS)
    agent.tell("dismiss")
    assert state_of(agent.reaper) == "X", "the reaper is gone before anything else happens, and no zombie"
    agent.kill()
    assert all(map(is_alive, agent.workers))


@pytest.mark.parametrize("word", [b".", b""], ids=["dismissed", "only closed"])
def test_the_dismissal_by_an_agent_that_has_ended_still_counts(stage: ProcessStage, marker: str, word: bytes) -> None:
    """A slow reaper sees both at once: the dismissal and the end of the agent."""
    agent = stage.start(("true",))
    agent_fd = os.pidfd_open(agent.pid)
    wait_for_zombie(agent)
    left = stage.start(SLEEPS, {MARKER_VARIABLE: marker})
    control, hearing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with hearing:
        if word:
            control.send(word)
        control.close()
        fds = (agent_fd, hearing.fileno())
        command = (sys.executable, "-I", "-S", reaper_main.__file__, *map(str, fds))
        try:
            subprocess.run((*command, f"{MARKER_VARIABLE}={marker}"), pass_fds=fds, check=True)
        finally:
            os.close(agent_fd)
    left.terminate()  # A pending SIGKILL is served first.
    assert left.wait() == (-signal.SIGTERM if word else -signal.SIGKILL)


def test_the_reaper_of_an_agent_that_has_ended_says_so_on_the_newest_lifeline(stage: ProcessStage, marker: str) -> None:
    agent = stage.start(("true",))
    agent_fd = os.pidfd_open(agent.pid)
    wait_for_zombie(agent)
    control, hearing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifelines = [socket.socketpair() for _ in range(2)]
    for _, node_end in lifelines:
        socket.send_fds(control, [reaper_main.LIFELINE_WORD], [node_end.fileno()])
        node_end.close()  # As if the agent had died: only the reaper holds it now.
    fds = (agent_fd, hearing.fileno())
    command = (sys.executable, "-I", "-S", reaper_main.__file__, *map(str, fds), f"{MARKER_VARIABLE}={marker}")
    try:
        subprocess.run(command, pass_fds=fds, check=True)
        assert [host_end.recv(16) for host_end, _ in lifelines] == [b"", b"dead\n"]
    finally:
        os.close(agent_fd)
        for end in (control, hearing, *(host_end for host_end, _ in lifelines)):
            end.close()


def test_a_dismissed_reaper_says_nothing_on_a_lifeline(marker: str) -> None:
    host_end, node_end = socket.socketpair()
    reaper = Reaper.start(marker)
    reaper.hold_lifeline(node_end.fileno())
    node_end.close()
    reaper.dismiss()
    with host_end:
        assert host_end.recv(16) == b"", "it is closed, and no word was said"
    reaper.hold_lifeline(0)


def test_a_dismissed_reaper_leaves_no_zombie_and_no_descriptor(marker: str) -> None:
    before = open_fds()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    reaper = Reaper.start(marker)
    pid = reaper.pid
    assert pid is not None
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    reaper.dismiss()
    assert state_of(pid) == "X"
    assert open_fds() <= before, "what earlier tests have left may be closed meanwhile; nothing is added"
    assert reaper.pid is None
    reaper.dismiss()


def test_a_dismissed_reaper_leaves_by_itself(marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine so busy that it takes long: only one that does not leave is killed."""
    monkeypatch.setattr("ft_rendezvous.agent.reaper.DISMISS_TIMEOUT_S", 120)
    reaper = Reaper.start(marker)
    assert reaper._child is not None
    process = reaper._child.process
    reaper.dismiss()
    assert process.returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reaper_in_trouble_can_be_dismissed(marker: str, signum: signal.Signals) -> None:
    before = open_fds()
    reaper = Reaper.start(marker)
    pid = reaper.pid
    assert pid is not None
    os.kill(pid, signum)
    wait_until("the signal has worked", lambda: state_of(pid) in "TZ")
    reaper.dismiss()
    assert state_of(pid) == "X"
    assert open_fds() <= before, "what earlier tests have left may be closed meanwhile; nothing is added"


def test_a_reaper_that_died_is_logged(marker: str, caplog: pytest.LogCaptureFixture) -> None:
    reaper = Reaper.start(marker)
    assert reaper.pid is not None
    os.kill(reaper.pid, signal.SIGKILL)
    wait_for_end(reaper.pid)
    reaper.dismiss()
    assert "the reaper ended before its agent exit_code=-9" in caplog.text


# --- what it keeps, and where it cannot be ----------------------------------------------------------


def test_a_reader_of_the_agents_output_does_not_wait_for_the_reaper(stage: ProcessStage, marker: str) -> None:
    agent = stage.start_agent(marker, *SLEEPS)
    os.kill(agent.reaper, signal.SIGSTOP)
    agent.kill()
    assert agent.process.stdout is not None
    assert agent.process.stdout.read() == b""
    assert is_alive(agent.reaper)
    os.kill(agent.reaper, signal.SIGCONT)
    wait_for_end(*agent.workers)


def test_the_reaper_holds_nothing_but_the_agent_and_the_control(stage: ProcessStage, marker: str) -> None:
    # An agent inside an agent: what carries the outer marker dies with the outer agent, the reaper must not.
    agent = stage.start_agent(marker, *SLEEPS, environ={MARKER_VARIABLE: "outer"})

    def held() -> list[str] | None:
        """One look at what the interpreter holds, once it holds no file that it only reads while it starts."""
        if not os.path.samefile(f"/proc/{agent.reaper}/exe", sys.executable):
            return None
        try:
            links = sorted(Path(f"/proc/{agent.reaper}/fd").iterdir(), key=lambda link: int(link.name))
            found = [os.readlink(link) for link in links]
        except OSError:  # One was closed meanwhile.
            return None
        return found if len(found) == 5 else None

    *standard, agent_fd, hearing_fd = wait_until("the interpreter has started", held)
    assert standard == ["/dev/null"] * 3
    assert "pidfd" in agent_fd
    assert "socket" in hearing_fd
    assert entries_of(agent.reaper, MARKER_VARIABLE) == []
    assert os.readlink(f"/proc/{agent.reaper}/cwd") == "/"


def no_such_call(_: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda patch: patch.setattr(os, "pidfd_open", no_such_call), id="old kernel"),
        pytest.param(lambda patch: patch.delattr(os, "pidfd_open"), id="old Python"),
        pytest.param(lambda patch: patch.setenv("PATH", "/nowhere"), id="cannot be started"),
    ],
)
def test_where_no_reaper_can_be_the_agent_is_warned_once(
    marker: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[pytest.MonkeyPatch], None],
) -> None:
    gc.collect()  # What earlier tests have left in cycles must not be closed in between.
    before = open_fds()
    break_it(monkeypatch)
    reaper = Reaper.start(marker)
    assert reaper.pid is None
    reaper.dismiss()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert open_fds() == before
