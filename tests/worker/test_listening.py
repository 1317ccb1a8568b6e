"""A worker hears from its agent which groups are lost, and whether its own place still stands."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ft_rendezvous import worker
from ft_rendezvous.agent import worker_inbox as inbox_module
from ft_rendezvous.agent.datagrams import send_at_once
from ft_rendezvous.agent.worker_messages import SubscribeMessage, encode, socket_name
from tests.support.waiting import WAIT_S, wait_until
from tests.worker.inbox_rig import CYCLE_ID, InboxRig, open_fds

Calls = queue.SimpleQueue[tuple[int, str]]

SUBSCRIBE = SubscribeMessage(cycle_id=CYCLE_ID, local_rank=0)

LISTENER = """
import os, queue, sys
from ft_rendezvous import worker

calls = queue.SimpleQueue()
assert worker.on_group_lost(lambda group, reason: calls.put((os.getpid(), group)))
if sys.argv[1:] == ["fork"]:
    child = os.fork()
    if child == 0:
        assert worker.on_group_lost(lambda group, reason: calls.put((os.getpid(), group)))
        assert worker.is_place_trusted(60)
        pid, group = calls.get(timeout=60)
        os._exit(0 if (pid, group) == (os.getpid(), 4) and calls.empty() else 1)
    pid, group = calls.get(timeout=60)
    assert (pid, group) == (os.getpid(), 4) and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    print(*calls.get(timeout=60))
"""


@pytest.fixture(autouse=True)
def _no_subscription(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a worker that has not subscribed yet. Its thread ends with its socket."""
    subscription = worker._Subscription()
    monkeypatch.setattr(worker, "_subscription", subscription)
    yield
    if subscription.socket is not None:
        subscription.socket.shutdown(socket.SHUT_RDWR)
        wait_until("the thread has ended", lambda: not listeners())
        subscription.socket.close()


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ft-listen"]


def subscribe() -> Calls:
    calls: Calls = queue.SimpleQueue()
    assert worker.on_group_lost(lambda group, reason: calls.put((group, reason)))
    return calls


# --- lost groups ------------------------------------------------------------------------------------


def test_a_worker_hears_of_each_lost_group(worker_inbox: InboxRig) -> None:
    calls, more = subscribe(), subscribe()
    worker_inbox.tell_all(3, "node0 lost its lease")
    worker_inbox.tell_all(0)
    for each in (calls, more):
        assert [each.get(timeout=WAIT_S) for _ in range(2)] == [(3, "node0 lost its lease"), (0, "")]
    assert len(listeners()) == 1
    assert worker_inbox.close() == [], "a subscription is not passed on"


def test_a_callback_that_raises_stops_no_other(worker_inbox: InboxRig, caplog: pytest.LogCaptureFixture) -> None:
    def fail(group: int, _reason: str) -> None:
        raise RuntimeError(f"no {group}")

    assert worker.on_group_lost(fail)
    calls = subscribe()
    for group in (1, 2):
        worker_inbox.tell_all(group)
        assert calls.get(timeout=WAIT_S) == (group, "")
    assert "RuntimeError: no 2" in caplog.text


def test_workers_of_another_cycle_are_not_told(worker_inbox: InboxRig) -> None:
    calls = subscribe()
    worker_inbox.tell_all(1)
    assert worker_inbox.tell(2, cycle_id=CYCLE_ID + 1) == 0
    worker_inbox.tell_all(3)
    assert [calls.get(timeout=WAIT_S)[0] for _ in range(2)] == [1, 3]
    worker_inbox.forget()
    assert worker_inbox.tell(4) == 0


def test_only_the_same_user_can_send_to_a_worker(worker_inbox: InboxRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test cannot become another user. So the worker believes to be another user's, and the kernel names us."""
    assert worker.is_place_trusted(WAIT_S)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert not worker.is_place_trusted(WAIT_S)
    assert worker_inbox.close() == []


@pytest.mark.parametrize("data", [b"x", b"{}", encode(SUBSCRIBE)])
def test_a_worker_ignores_what_is_no_message_of_an_agent(data: bytes, worker_inbox: InboxRig) -> None:
    calls = subscribe()
    assert worker._subscription.socket is not None
    send_at_once(data, worker._subscription.socket.getsockname())
    worker_inbox.tell_all(1)
    assert calls.get(timeout=WAIT_S) == (1, "")


def test_a_worker_that_has_ended_is_forgotten(inbox: InboxRig) -> None:
    process = subprocess.Popen((sys.executable, "-c", LISTENER), env={**os.environ, **inbox.environ}, text=True)
    with process:
        inbox.tell_all(4)
        assert process.wait(WAIT_S) == 0
    assert len(inbox._inbox._subscribers) == 1
    assert inbox.tell(5) == 0
    assert len(inbox._inbox._subscribers) == 0


def test_a_worker_that_reads_nothing_does_not_hold_the_agent(worker_inbox: InboxRig) -> None:
    with worker._send_from_own_socket(SUBSCRIBE, worker_inbox.address):
        worker_inbox.tell_all(0)
        wait_until("its socket is full", lambda: worker_inbox.tell(0) == 0)
        calls = subscribe()
        wait_until("both are known", lambda: len(worker_inbox._inbox._subscribers) == 2)
        assert worker_inbox.tell(1) == 1
        assert calls.get(timeout=WAIT_S) == (1, "")


def test_subscriptions_are_bounded(worker_inbox: InboxRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_SUBSCRIBERS", 2)
    sockets = [worker._send_from_own_socket(SUBSCRIBE, worker_inbox.address) for _ in range(3)]
    names = [sock.getsockname() for sock in sockets]
    wait_until("the last two are kept", lambda: list(worker_inbox._inbox._subscribers) == names[1:])
    for sock in sockets:
        sock.close()


def test_a_fork_has_a_subscription_of_its_own(inbox: InboxRig) -> None:
    environ = {**os.environ, **inbox.environ}
    with subprocess.Popen((sys.executable, "-c", LISTENER, "fork"), env=environ) as process:
        inbox.tell_all(4, subscribers=2)
        assert process.wait(WAIT_S) == 0


def test_without_an_agent_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_fds()
    assert not worker.on_group_lost(lambda _group, _reason: None)
    for name, value in {"FT_CYCLE_ID": "7", "LOCAL_RANK": "0", "FT_INBOX": "@ft-rendezvous/gone"}.items():
        monkeypatch.setenv(name, value)
    assert not worker.on_group_lost(lambda _group, _reason: None)
    assert not worker.is_place_trusted(WAIT_S)
    assert open_fds() == before
    assert listeners() == []


# --- the own place ----------------------------------------------------------------------------------


def test_the_agent_says_whether_a_place_stands(worker_inbox: InboxRig) -> None:
    before = open_fds()
    assert worker.is_place_trusted(WAIT_S)
    worker_inbox.trusted_cycles.clear()
    assert not worker.is_place_trusted(WAIT_S)
    # The inbox, in this process too, may still close the socket of its answer.
    wait_until("no descriptor is left", lambda: open_fds() == before)
    assert worker_inbox.close() == [], "a question is not passed on"


def test_an_agent_that_does_not_answer_is_not_trusted(worker_inbox: InboxRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that nobody reads stands for an agent that is stopped."""
    monkeypatch.setenv("FT_INBOX", "@ft-rendezvous/silent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent:
        silent.bind(socket_name("@ft-rendezvous/silent"))
        assert not worker.is_place_trusted(0.01)
    monkeypatch.setenv("FT_INBOX", worker_inbox.address)
    assert worker.is_place_trusted(WAIT_S)
