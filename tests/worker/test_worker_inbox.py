"""The inbox passes on the messages of this user's workers, ignores all else, and leaves nothing when it is closed."""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.agent import worker_inbox as inbox_module
from ft_rendezvous.agent.worker_inbox import WorkerInbox
from ft_rendezvous.agent.worker_messages import (
    MAX_MESSAGE_BYTES,
    CheckpointMessage,
    Fault,
    RestartMessage,
    SubscribeMessage,
    WorkerMessage,
    encode,
)
from tests.support.waiting import WAIT_S, wait_until
from tests.worker.inbox_rig import InboxRig, open_fds, send

GOOD = CheckpointMessage(cycle_id=3, local_rank=0)
BAD_FIELDS = json.dumps({"says": "restart", "cycle_id": -1, "local_rank": 0, "reason": ""}).encode()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ft-inbox"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No thread and no descriptor outlives its inbox."""
    before, others = open_fds(), threads()
    yield
    assert threads() == others
    assert open_fds() == before


@pytest.fixture
def inbox(_nothing_is_left: None) -> Iterator[InboxRig]:
    inbox = InboxRig()
    yield inbox
    inbox.close()


# --- what is ignored --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.NOT_JSON),
        (b"\xff{", Fault.NOT_JSON),
        (b"[" * MAX_MESSAGE_BYTES, Fault.NOT_JSON),
        (encode(GOOD) + b" " * MAX_MESSAGE_BYTES, Fault.TOO_LONG),
        (b'{"says": "close"}', Fault.UNKNOWN),
        (BAD_FIELDS, Fault.BAD_FIELDS),
    ],
)
def test_a_bad_datagram_is_logged_once_and_ignored(
    data: bytes, fault: Fault, inbox: InboxRig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        send(inbox.address, data)
    send(inbox.address, encode(GOOD))
    assert inbox.hear() == GOOD, "nothing before it was passed on"
    (warning,) = warnings(caplog)
    assert fault in warning


def test_every_kind_of_fault_is_logged(inbox: InboxRig, caplog: pytest.LogCaptureFixture) -> None:
    for data in (b"x", b"{}", b"y", b"[]", BAD_FIELDS, encode(SubscribeMessage(cycle_id=3, local_rank=0))):
        send(inbox.address, data)
    assert inbox.close() == []
    logged = warnings(caplog)
    assert [fault for fault in Fault if any(fault in line for line in logged)] == list(Fault)[2:]
    assert len(logged) == 4


def test_a_message_may_fill_the_datagram(inbox: InboxRig) -> None:
    send(inbox.address, encode(GOOD).ljust(MAX_MESSAGE_BYTES))
    assert inbox.hear() == GOOD


def test_another_user_is_ignored(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The test cannot become another user. So the inbox believes to be another user's, and the kernel names us."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    inbox = InboxRig()
    for _ in range(3):
        send(inbox.address, encode(GOOD))
    assert inbox.close() == []
    (warning,) = warnings(caplog)
    assert Fault.FOREIGN in warning


def test_attached_descriptors_are_not_received(inbox: InboxRig) -> None:
    before = open_fds()
    with Path("/dev/null").open() as file:
        send(inbox.address, encode(GOOD), attached=struct.pack("i", file.fileno()))
    assert inbox.hear() == GOOD
    assert open_fds() == before


# --- a receiver in trouble --------------------------------------------------------------------------


def test_a_receiver_that_raises_loses_one_message(caplog: pytest.LogCaptureFixture) -> None:
    received: list[WorkerMessage] = []

    def receive(message: WorkerMessage) -> None:
        received.append(message)
        if isinstance(message, RestartMessage):
            raise RuntimeError("no link")

    inbox = WorkerInbox(receive)
    restart = RestartMessage(cycle_id=1, local_rank=0, reason="slow")
    send(inbox.address, encode(restart))
    send(inbox.address, encode(GOOD))
    inbox.close()
    assert received == [restart, GOOD]
    assert "a worker's message was lost" in caplog.text
    assert "RuntimeError: no link" in caplog.text


def test_a_receiver_that_hangs_does_not_hold_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "CLOSE_TIMEOUT_S", 0.0)
    is_in, goes_on = threading.Event(), threading.Event()

    def receive(_: WorkerMessage) -> None:
        is_in.set()
        assert goes_on.wait(WAIT_S)

    inbox = WorkerInbox(receive)
    send(inbox.address, encode(GOOD))
    assert is_in.wait(WAIT_S)
    inbox.close()
    assert threads() != []
    goes_on.set()
    wait_until("the thread has ended", lambda: not threads())


# --- closing ----------------------------------------------------------------------------------------


def test_closing_ends_the_thread_and_the_address(inbox: InboxRig) -> None:
    assert len(threads()) == 1
    inbox.close()
    assert threads() == []
    with pytest.raises(ConnectionRefusedError):
        send(inbox.address, encode(GOOD))
    inbox.close()


def test_messages_from_before_the_close_are_still_passed_on() -> None:
    received: list[WorkerMessage] = []
    is_in, goes_on = threading.Event(), threading.Event()

    def receive(message: WorkerMessage) -> None:
        is_in.set()
        assert goes_on.wait(WAIT_S)
        received.append(message)

    inbox = WorkerInbox(receive)
    messages = [CheckpointMessage(cycle_id=cycle_id, local_rank=0) for cycle_id in range(3)]
    for message in messages:
        send(inbox.address, encode(message))
    assert is_in.wait(WAIT_S)
    closing = threading.Thread(target=inbox.close)
    closing.start()
    goes_on.set()
    closing.join()
    wait_until("the thread has ended", lambda: not threads())
    assert received == messages


def test_the_receiver_itself_may_close() -> None:
    is_closed = threading.Event()

    def receive(_: WorkerMessage) -> None:
        closing_inbox.close()
        is_closed.set()

    closing_inbox = WorkerInbox(receive)
    send(closing_inbox.address, encode(GOOD))
    assert is_closed.wait(WAIT_S)
    wait_until("the thread has ended", lambda: not threads())


def test_inboxes_have_different_addresses_that_fit_into_an_environment(inbox: InboxRig) -> None:
    other = InboxRig()
    other.close()
    assert other.address != inbox.address
    assert inbox.address.startswith("@ft-rendezvous/")
    assert inbox.address.isprintable()
    assert not Path(inbox.address[1:]).exists()
