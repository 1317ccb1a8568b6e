"""The process that holds lifelines, as a real process: what it tells its host, and what it survives."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ft_rendezvous.core.suspects import LifelineNews, LifelineSign
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host.lifeline_main import LATE_AFTER_S, LOOK_INTERVAL_S, Peer, Switchboard
from ft_rendezvous.host.lifelines import Lifelines, start_lifelines
from ft_rendezvous.node.lifeline import Lifeline, greeting
from tests.support.torchrun_cluster import state_of
from tests.support.waiting import wait_until

EPOCH = "e" * 16
A, B = "a" * 16, "b" * 16
MANY = 500


class Board:
    """Lifelines with all news so far."""

    def __init__(self) -> None:
        self.lifelines = Lifelines(EPOCH)
        self.news: list[LifelineNews] = []

    def connect(self, incarnation: str = A) -> Lifeline:
        return Lifeline("127.0.0.1", self.lifelines.port, EPOCH, incarnation)

    def stop_process(self) -> int:
        """Let the process that holds them stand still. Returns its id."""
        pid = self.lifelines.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until("it stands still", lambda: state_of(pid) == "T" or None)
        return pid

    def await_signs(self, *signs: tuple[str, LifelineSign]) -> None:
        wanted = [LifelineNews(name, sign) for name, sign in signs]
        wait_until(f"the news are {wanted}", lambda: self._look()[-len(wanted) :] == wanted or None, 20.0)

    def _look(self) -> list[LifelineNews]:
        self.news += self.lifelines.take_news()
        return self.news


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    try:
        yield board
    finally:
        board.lifelines.close()


def test_a_lifeline_begins_and_ends(board: Board) -> None:
    lifeline = board.connect()
    board.await_signs((A, LifelineSign.CONNECTED))
    lifeline.close(says_goodbye=False)
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))


def test_a_goodbye_is_no_hang_up(board: Board) -> None:
    board.connect().close(says_goodbye=True)
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.GOODBYE))


def test_a_reset_is_a_hang_up(board: Board) -> None:
    lifeline = board.connect()
    lifeline._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lifeline.release()
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))


def test_the_end_of_an_older_lifeline_means_nothing(board: Board) -> None:
    older, newer = board.connect(), board.connect()
    older.close(says_goodbye=False)
    other = board.connect(B)
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.CONNECTED), (B, LifelineSign.CONNECTED))
    newer.close(says_goodbye=False)
    board.await_signs((B, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))
    other.close(says_goodbye=True)


def test_the_word_of_a_reaper(board: Board) -> None:
    lifeline = board.connect()
    os.write(lifeline.fileno(), b"dead\n")
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.DEAD))


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, greeting("f" * 16, A), greeting(EPOCH, "a b"), b"x" * 200],
    ids=["nothing", "a browser", "zeros", "another run", "a bad name", "a long line"],
)
def test_strangers_are_ignored(board: Board, words: bytes) -> None:
    with socket.create_connection(("127.0.0.1", board.lifelines.port), timeout=20.0) as stranger:
        stranger.sendall(words)
        if words:
            with pytest.raises(ConnectionError) if len(words) > 200 else ExitStack():
                assert stranger.recv(16) == b"", "the stranger is sent off"
        lifeline = board.connect()
    board.await_signs((A, LifelineSign.CONNECTED))
    assert [each.incarnation for each in board.news] == [A]
    lifeline.close(says_goodbye=True)


def test_a_greeting_may_come_in_pieces(board: Board) -> None:
    with socket.create_connection(("127.0.0.1", board.lifelines.port), timeout=20.0) as node:
        for byte in greeting(EPOCH, A):
            node.sendall(bytes([byte]))
        assert node.recv(16) == b"ok\n"
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))


def test_a_greeting_whose_node_has_given_up_is_no_lifeline(board: Board) -> None:
    """A process that stands still, or is missing for a while, finds greetings of nodes that wait no longer. Such a node
    lives, and does not know that its lifeline would begin and end now: it would not beat in time."""
    held = [board.connect(B)]
    board.await_signs((B, LifelineSign.CONNECTED))
    pid = board.stop_process()
    with socket.create_connection(("127.0.0.1", board.lifelines.port), timeout=20.0) as node:
        node.sendall(greeting(EPOCH, A))
    os.kill(pid, signal.SIGCONT)
    # The process has read the greeting before it confirms the first of these, and its end before the second.
    held += [board.connect(B), board.connect(B)]
    wait_until("three lifelines are there", lambda: [each.incarnation for each in board._look()].count(B) == 3 or None)
    assert [each for each in board.news if each.incarnation == A] == []
    assert {each.sign for each in board.news} == {LifelineSign.CONNECTED}
    del held


@pytest.mark.parametrize(("says_dead", "told"), [(False, []), (True, [LifelineNews(A, LifelineSign.DEAD)])])
def test_a_hang_up_that_is_found_late_says_nothing(board: Board, says_dead: bool, told: list[LifelineNews]) -> None:
    """The node has noticed the end long ago. It lives or not, but it does not beat quickly any more. The word of a
    reaper is true for ever."""
    lifeline, held = board.connect(A), [board.connect(B)]
    board.await_signs((A, LifelineSign.CONNECTED), (B, LifelineSign.CONNECTED))
    pid = board.stop_process()
    if says_dead:
        os.write(lifeline.fileno(), b"dead\n")
    lifeline.close(says_goodbye=False)
    time.sleep(LOOK_INTERVAL_S + LATE_AFTER_S)
    os.kill(pid, signal.SIGCONT)
    held += [board.connect(B), board.connect(B)]  # Connected one after the other, so the end of A is known by now.
    wait_until("three lifelines are there", lambda: [each.incarnation for each in board._look()].count(B) == 3 or None)
    assert [each for each in board.news if each.incarnation == A][1:] == told
    held.append(board.connect(A))
    board.await_signs((A, LifelineSign.CONNECTED))
    held.pop().close(says_goodbye=False)
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ETIMEDOUT, ""), (errno.EHOSTUNREACH, ""), (errno.ECONNRESET, f"-{A}\n")]
)
def test_a_connection_that_only_falls_silent_is_no_hang_up(
    capsys: pytest.CaptureFixture[str], number: int, told: str
) -> None:
    """A firewall that begins to drop packets ends lifelines of nodes that live, and each end sees that for itself."""

    class Silent(socket.socket):
        def recv(self, _most: int, _flags: int = 0, /) -> bytes:
            raise OSError(number, os.strerror(number))

    with socket.create_server(("127.0.0.1", 0)) as listener, Silent() as gone:
        peer = Peer(gone, 0.0)
        peer.name = A
        switchboard = Switchboard(listener, os.pidfd_open(os.getpid()), EPOCH)
        switchboard._newest[A] = peer
        switchboard._hear(peer)
        assert gone.fileno() == -1
        assert capsys.readouterr().out == told


def test_many_that_hang_up_at_once(board: Board) -> None:
    lifelines = [board.connect(f"{number:016x}") for number in range(MANY)]
    for lifeline in lifelines:
        lifeline.close(says_goodbye=False)
    wait_until("all have hung up", lambda: len(board._look()) == 2 * MANY or None, 30.0)
    assert {each.sign for each in board.news[-10:]} == {LifelineSign.HUNG_UP}


def test_a_process_that_is_killed_is_replaced_and_no_node_is_suspected(board: Board) -> None:
    lifeline = board.connect()
    board.await_signs((A, LifelineSign.CONNECTED))
    pid = board.lifelines.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    lifeline.await_end()
    again = board.connect()
    board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.CONNECTED))
    assert board.lifelines.pid != pid
    again.close(says_goodbye=True)


def test_after_the_close_the_port_refuses_and_the_process_is_gone() -> None:
    board = Board()
    lifeline, pid = board.connect(), board.lifelines.pid
    assert pid is not None
    board.lifelines.close()
    board.lifelines.close()
    lifeline.await_end()
    with pytest.raises(StoreUnavailable) as refused:
        board.connect()
    assert refused.value.is_refused
    _await_gone(pid)


def test_it_ends_with_its_host_and_not_with_signals_for_the_job() -> None:
    program = (
        "import time, sys; from ft_rendezvous.host.lifelines import Lifelines\n"
        "lifelines = Lifelines('e' * 16)\n"
        "while lifelines.pid is None: time.sleep(0.01)\n"
        "print(lifelines.pid, lifelines.port, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid, port = map(int, host.stdout.readline().split())
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, signum)
        lifeline = Lifeline("127.0.0.1", port, EPOCH, A)
        host.kill()
        lifeline.await_end()
    _await_gone(pid)


def test_a_port_that_is_taken_is_an_error_with_the_next_step() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"lifeline_port={port} cannot be opened: .*choose another one"):
            Lifelines(EPOCH, port)


def test_a_python_without_pidfds_has_no_lifelines_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was built with old headers. The run goes on by leases."""
    monkeypatch.delattr(os, "pidfd_open")
    assert start_lifelines(EPOCH, 0, max_nodes=2) is None
    assert "no lifelines: " in caplog.text


@pytest.mark.parametrize(("hard", "is_warned"), [(300, True), (1300, False)])
def test_a_limit_of_open_files_that_is_too_low_is_warned_of_once(hard: int, is_warned: bool) -> None:
    """In a process of its own: a hard limit cannot be raised again."""
    program = (
        "import resource; from ft_rendezvous.host.lifelines import start_lifelines\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))\n"
        "start_lifelines('e' * 16, 0, max_nodes=1000).close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    told = f"the process that holds the lifelines may open {hard} files, 1000 nodes need 1256"
    assert done.stderr.count(told) == is_warned
    assert len(done.stderr.splitlines()) == is_warned


def test_the_process_raises_its_own_limit(board: Board) -> None:
    wait_until("the process is there", lambda: board.lifelines.pid, 20.0)
    board.connect().close(says_goodbye=True)
    assert board.lifelines.pid is not None
    soft, hard = resource.prlimit(board.lifelines.pid, resource.RLIMIT_NOFILE)
    assert soft == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_a_fork_does_not_hold_the_lifeline(board: Board) -> None:
    """A worker that torch forks from the agent must not keep the dead agent's lifeline open."""
    lifeline = board.connect()
    board.await_signs((A, LifelineSign.CONNECTED))
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:  # Wait for the end of the test, and do nothing else.
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        # The kernel tells the host only when the last holder has closed it: no shutdown here.
        lifeline.release()
        board.await_signs((A, LifelineSign.CONNECTED), (A, LifelineSign.HUNG_UP))
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)


def _await_gone(pid: int) -> None:
    def is_gone() -> bool | None:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z" or None
        except FileNotFoundError:
            return True

    wait_until(f"process {pid} is gone", is_gone, 20.0)
