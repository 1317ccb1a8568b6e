"""What happens when the head of a cluster is gone, without Ray: the head is a socket here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ft_rendezvous.errors import ConfigError, HeadLost
from ft_rendezvous.launch.ray import head_watch
from ft_rendezvous.launch.ray.head_watch import HeadClock, probe_head, while_head_lives


@pytest.fixture
def head() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


def address_of(head: socket.socket) -> str:
    return f"127.0.0.1:{head.getsockname()[1]}"


def test_a_head_is_silent_since_its_last_answer() -> None:
    clock = HeadClock(100.0)
    assert clock.note(True, 101.0) == 0.0
    assert clock.note(False, 105.0) == 4.0
    assert clock.note(False, 130.0) == 29.0
    assert clock.note(True, 131.0) == 0.0
    assert clock.note(False, 132.0) == 1.0


def test_a_head_that_is_gone_says_why(head: socket.socket) -> None:
    address = address_of(head)
    assert probe_head(address) == ""
    head.close()
    assert "refused" in probe_head(address)


def test_work_returns_its_result_or_its_error(head: socket.socket) -> None:
    assert while_head_lives(address_of(head), lambda: 7, "run it again") == 7
    for error in (ConfigError("bad"), TimeoutError("late"), KeyError("x")):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            while_head_lives(address_of(head), fail, "run it again")
        assert raised.value is error


def test_work_that_waits_for_a_lost_head_is_left(head: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "PROBE_INTERVAL_S", 0.02)
    address, never = address_of(head), threading.Event()

    def lose_head() -> None:
        head.close()
        never.wait()

    with pytest.raises(HeadLost, match=rf"at {address} has not answered for \d+ s: run it again"):
        while_head_lives(address, lose_head, "run it again", timeout_s=0.2)
    never.set()


def test_a_head_that_is_back_in_time_is_not_lost(head: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "PROBE_INTERVAL_S", 0.02)
    found = iter(["refused"] * 3)
    is_back = threading.Event()

    def probe(_: str) -> str:
        why = next(found, "")
        if not why:
            is_back.set()
        return why

    monkeypatch.setattr(head_watch, "probe_head", probe)
    assert while_head_lives(address_of(head), lambda: is_back.wait(30.0), "run it again", timeout_s=20.0)


def test_an_error_of_work_without_a_head_is_the_loss_of_the_head(head: socket.socket) -> None:
    def fail() -> None:
        head.close()
        raise ConfigError("Ray does not answer as it should")

    with pytest.raises(HeadLost):
        while_head_lives(address_of(head), fail, "run it again")
