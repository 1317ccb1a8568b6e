"""The inbox passes on messages of this user's workers, ignores all else, and leaves nothing behind when it closes."""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.agent import worker_inbox as door_module
from ft_rendezvous.agent.worker_inbox import Door
from ft_rendezvous.agent.worker_messages import MAX_MESSAGE_BYTES, AtCheckpoint, Fault, Message, Restart, encode
from tests.support.torchrun_cluster import WAIT_S, wait_until
from tests.worker.inbox_rig import InboxRig, open_fds, send

GOOD = AtCheckpoint(cycle_id=3, local_rank=0)
BAD_FIELDS = json.dumps({"says": "restart", "cycle_id": -1, "local_rank": 0, "reason": ""}).encode()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ft-door"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After a test, no thread and no descriptor of its inbox is left."""
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
def test_a_bad_datagram_is_told_of_once_and_ignored(
    data: bytes, fault: Fault, inbox: InboxRig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        send(inbox.door.address, data)
    send(inbox.door.address, encode(GOOD))
    assert inbox.hear() == GOOD, "nothing before it was passed on"
    (warning,) = warnings(caplog)
    assert fault in warning


def test_every_kind_of_fault_is_told_of(inbox: InboxRig, caplog: pytest.LogCaptureFixture) -> None:
    for data in (b"x", b"{}", b"y", b"[]", BAD_FIELDS):
        send(inbox.door.address, data)
    assert inbox.close() == []
    told = warnings(caplog)
    assert [fault for fault in Fault if any(fault in line for line in told)] == list(Fault)[2:]
    assert len(told) == 3


def test_a_message_may_fill_the_datagram(inbox: InboxRig) -> None:
    send(inbox.door.address, encode(GOOD).ljust(MAX_MESSAGE_BYTES))
    assert inbox.hear() == GOOD


def test_another_user_is_not_heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A test may not become another user. So here the inbox expects another user, and the kernel names ours."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    inbox = InboxRig()
    for _ in range(3):
        send(inbox.door.address, encode(GOOD))
    assert inbox.close() == []
    (warning,) = warnings(caplog)
    assert Fault.FOREIGN in warning


def test_attached_descriptors_are_not_received(inbox: InboxRig) -> None:
    before = open_fds()
    with Path("/dev/null").open() as file:
        send(inbox.door.address, encode(GOOD), attached=struct.pack("i", file.fileno()))
    assert inbox.hear() == GOOD
    assert open_fds() == before


# --- a receiver in trouble --------------------------------------------------------------------------


def test_a_receiver_that_raises_loses_one_message(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Message] = []

    def take_in(message: Message) -> None:
        heard.append(message)
        if isinstance(message, Restart):
            raise RuntimeError("no link")

    door = Door(take_in)
    restart = Restart(cycle_id=1, local_rank=0, reason="slow")
    send(door.address, encode(restart))
    send(door.address, encode(GOOD))
    door.close()
    assert heard == [restart, GOOD]
    assert "a worker's message was lost" in caplog.text
    assert "RuntimeError: no link" in caplog.text


def test_a_receiver_that_is_stuck_does_not_hold_the_one_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "STOP_S", 0.0)
    is_in, goes_on = threading.Event(), threading.Event()

    def take_in(_: Message) -> None:
        is_in.set()
        assert goes_on.wait(WAIT_S)

    door = Door(take_in)
    send(door.address, encode(GOOD))
    assert is_in.wait(WAIT_S)
    door.close()
    assert threads() != []
    goes_on.set()
    wait_until("the thread has ended", lambda: not threads())


# --- closing ----------------------------------------------------------------------------------------


def test_closing_ends_the_thread_and_the_address(inbox: InboxRig) -> None:
    assert len(threads()) == 1
    inbox.close()
    assert threads() == []
    with pytest.raises(ConnectionRefusedError):
        send(inbox.door.address, encode(GOOD))
    inbox.close()


def test_what_lay_at_the_door_is_still_passed_on() -> None:
    heard: list[Message] = []
    is_in, goes_on = threading.Event(), threading.Event()

    def take_in(message: Message) -> None:
        is_in.set()
        assert goes_on.wait(WAIT_S)
        heard.append(message)

    door = Door(take_in)
    messages = [AtCheckpoint(cycle_id=cycle_id, local_rank=0) for cycle_id in range(3)]
    for message in messages:
        send(door.address, encode(message))
    assert is_in.wait(WAIT_S)
    closing = threading.Thread(target=door.close)
    closing.start()
    goes_on.set()
    closing.join()
    wait_until("the thread has ended", lambda: not threads())
    assert heard == messages


def test_the_receiver_itself_may_close() -> None:
    is_closed = threading.Event()

    def take_in(_: Message) -> None:
        door.close()
        is_closed.set()

    door = Door(take_in)
    send(door.address, encode(GOOD))
    assert is_closed.wait(WAIT_S)
    wait_until("the thread has ended", lambda: not threads())


def test_doors_have_different_addresses_that_fit_into_an_environment(inbox: InboxRig) -> None:
    other = InboxRig()
    other.close()
    assert other.door.address != inbox.door.address
    assert inbox.door.address.startswith("@ft-rendezvous/")
    assert inbox.door.address.isprintable()
    assert not Path(inbox.door.address[1:]).exists()
