"""What `attach` does with a manager, by stand-ins for torchft's parts. `test_groups` uses the real ones."""

from __future__ import annotations

import queue
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchft")

from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

from ft_rendezvous import torchft, worker
from ft_rendezvous.errors import PlaceLost
from tests.support.waiting import WAIT_S, wait_until

OWN, OTHER, THIRD = "0:a", "1:b", "2:c"
STORE = "127.0.0.1:29500/torchft/1/0"


class AbortingGroup(ProcessGroupWrapper):  # type: ignore[misc]
    """A process group with an abort that works, as NCCL's."""

    def __init__(self) -> None:
        super().__init__(timedelta(seconds=60))
        self.aborts = 0
        self.is_connecting = threading.Event()
        self.may_connect = threading.Event()
        self.may_connect.set()

    def configure(self, *_args: Any, **_kwargs: Any) -> None:
        self.is_connecting.set()
        assert self.may_connect.wait(WAIT_S)

    def abort(self, errored: bool = True) -> None:
        del errored
        self.aborts += 1


class FakeManager:
    """As much of torchft's manager as `attach` touches."""

    def __init__(self, process_group: Any) -> None:
        self._pg = process_group
        self._replica_id = "0"
        self._client: Any = SimpleNamespace(_quorum=lambda: SimpleNamespace(replica_ids=self.members), should_commit=3)
        self._manager: Any = SimpleNamespace(shutdown=self._shut_down)
        self.members: list[str] = []
        self.quorums = 0
        self.is_shut_down = False

    def start_quorum(self) -> None:
        self.quorums += 1

    def _shut_down(self) -> None:
        self.is_shut_down = True

    def form_quorum(self, *members: str) -> None:
        """What torchft does in its thread, up to a quorum."""
        self.members = list(members)
        self._client._quorum()


class Agent:
    """What the agent says."""

    def __init__(self) -> None:
        self.callbacks: list[worker.GroupLostCallback] = []
        self.answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def tell(self, group: int) -> None:
        for callback in self.callbacks:
            callback(group, "the test says so")

    def subscribe(self, callback: worker.GroupLostCallback) -> bool:
        self.callbacks.append(callback)
        return True

    def is_place_trusted(self, _timeout_s: float) -> bool:
        return self.answers.get(timeout=WAIT_S)


@pytest.fixture(autouse=True)
def excepthook_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    agent = Agent()
    monkeypatch.setattr(worker, "on_group_lost", agent.subscribe)
    monkeypatch.setattr(worker, "is_place_trusted", agent.is_place_trusted)
    monkeypatch.setattr(torchft._Attachment, "_guard_place", lambda _self: None)
    return agent


@pytest.fixture
def process_group() -> AbortingGroup:
    return AbortingGroup()


@pytest.fixture
def manager(agent: Agent, process_group: AbortingGroup) -> FakeManager:
    del agent
    manager = FakeManager(process_group)
    any_manager: Any = manager
    assert torchft.attach(any_manager)
    return manager


# --- lost groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replica_id", "group"),
    [("3:5c0b", 3), ("group_12:5c0b", 12), ("0:", 0), ("trainer:5c0b", None), ("5c0b-4711", None), ("", None)],
)
def test_a_member_names_its_group(replica_id: str, group: int | None) -> None:
    assert torchft._group_of(replica_id) == group


def test_the_loss_of_a_member_ends_the_collective_once(
    agent: Agent, manager: FakeManager, process_group: AbortingGroup
) -> None:
    manager.form_quorum(OWN, OTHER, THIRD)
    agent.tell(1)
    agent.tell(1)
    agent.tell(2)
    assert process_group.aborts == 1
    manager.form_quorum(OWN, "1:new", "2:new")
    agent.tell(1)
    assert process_group.aborts == 2


@pytest.mark.parametrize("members", [(), (OWN,), (OWN, OTHER)])
def test_the_loss_of_another_group_ends_nothing(
    members: tuple[str, ...], agent: Agent, manager: FakeManager, process_group: AbortingGroup
) -> None:
    if members:
        manager.form_quorum(*members)
    agent.tell(2)
    assert process_group.aborts == 0


def test_a_member_that_names_no_group_may_be_the_lost_one(
    agent: Agent, manager: FakeManager, process_group: AbortingGroup
) -> None:
    manager.form_quorum(OWN, "5c0b-4711")
    agent.tell(2)
    assert process_group.aborts == 1


def test_a_late_quorum_with_a_lost_member_is_not_connected(
    agent: Agent, manager: FakeManager, process_group: AbortingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.form_quorum(OWN, OTHER, THIRD)
    agent.tell(1)
    agent.tell(2)
    manager.form_quorum(OWN, THIRD)
    with pytest.raises(RuntimeError, match="a member of this quorum is lost"):
        process_group.configure(STORE)
    manager.form_quorum(OWN, "1:new")
    process_group.configure(STORE)
    monkeypatch.setattr(torchft, "LOSS_MEMORY_S", 0.0)
    manager.form_quorum(OWN, OTHER)
    process_group.configure(STORE)


def test_a_loss_while_members_connect_ends_the_wait_for_the_store(
    agent: Agent, manager: FakeManager, process_group: AbortingGroup
) -> None:
    """Only the connection that was opened meanwhile. The abort comes when there is something to abort."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as former:
            manager.form_quorum(OWN, OTHER)
            process_group.may_connect.clear()
            connecting = threading.Thread(target=process_group.configure, args=(f"localhost:{port}/a/b",))
            connecting.start()
            assert process_group.is_connecting.wait(WAIT_S)
            with socket.create_connection(("127.0.0.1", port)) as new:
                telling = threading.Thread(target=agent.tell, args=(1,))
                telling.start()
                assert new.recv(1) == b""
                former.setblocking(False)
                with pytest.raises(BlockingIOError):
                    former.recv(1)
                assert process_group.aborts == 0
                process_group.may_connect.set()
                connecting.join()
                telling.join()
                assert process_group.aborts == 1


def test_what_a_client_can_else_do_is_not_changed(manager: FakeManager) -> None:
    assert manager._client.should_commit == 3


# --- connections of gloo ----------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        set_timeouts(server, 60.137)  # A listener must never be shut down.
        yield client, accepted
        with socket.create_connection(server.getsockname()):
            pass


def set_timeouts(sock: socket.socket, timeout_s: float) -> None:
    seconds = int(timeout_s)
    value = struct.pack("ll", seconds, round((timeout_s - seconds) * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


@pytest.mark.parametrize(("timeout_s", "is_shut"), [(60.137, True), (60.0, False), (60.157, False), (61.137, False)])
def test_only_connections_with_the_mark_are_shut_down(
    timeout_s: float, is_shut: bool, connection: tuple[socket.socket, socket.socket]
) -> None:
    client, accepted = connection
    set_timeouts(client, timeout_s)
    torchft._shut_down_marked(timedelta(seconds=60.137))
    accepted.settimeout(WAIT_S)
    if not is_shut:
        client.send(b"x")
    assert accepted.recv(1) == (b"" if is_shut else b"x")


def test_a_descriptor_with_another_socket_is_left_alone(connection: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = connection
    with torchft._borrowed(client.fileno(), inode=1) as sock:
        assert sock is None
    with torchft._borrowed(100_000, inode=1) as sock:
        assert sock is None
    accepted.close()


@pytest.mark.usefixtures("agent")
def test_every_manager_has_its_own_mark() -> None:
    timeouts = []
    for _ in torchft.MARKS_S:
        process_group = ProcessGroupGloo(timedelta(seconds=59.5))
        any_manager: Any = FakeManager(ProcessGroupWrapper(pg=process_group))
        assert torchft.attach(any_manager)
        timeouts.append(round(process_group._timeout.total_seconds(), 3))
    assert sorted(timeouts) == [60 + mark_s for mark_s in torchft.MARKS_S]


# --- the own place ----------------------------------------------------------------------------------


def test_who_did_not_stand_still_asks_nothing(manager: FakeManager) -> None:
    manager.start_quorum()
    manager.start_quorum()
    assert manager.quorums == 2


def test_who_stood_still_asks_and_goes_on(agent: Agent, manager: FakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchft, "STANDSTILL_S", 0.0)
    agent.answers.put(True)
    manager.start_quorum()
    assert manager.quorums == 1
    assert not manager.is_shut_down


def test_who_stood_still_and_lost_its_place_joins_nothing(
    agent: Agent, manager: FakeManager, process_group: AbortingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.form_quorum(OWN, OTHER)
    monkeypatch.setattr(torchft, "STANDSTILL_S", 0.0)
    agent.answers.put(False)
    for _ in range(2):
        with pytest.raises(PlaceLost):
            manager.start_quorum()
    assert manager.quorums == 0
    assert manager.is_shut_down
    assert process_group.aborts == 1
    manager.form_quorum(OWN, "1:new")
    with pytest.raises(RuntimeError):
        process_group.configure(STORE)


def test_the_loss_of_the_own_group_ends_all(agent: Agent, manager: FakeManager, process_group: AbortingGroup) -> None:
    manager.form_quorum(OWN, OTHER)
    agent.tell(0)
    assert manager.is_shut_down
    assert process_group.aborts == 1
    with pytest.raises(PlaceLost):
        manager.start_quorum()


def test_a_script_that_fails_leaves_at_once(
    manager: FakeManager, process_group: AbortingGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not when its process has ended. Its error is still told."""
    manager.form_quorum(OWN, OTHER)
    error = RuntimeError("another rank is gone")
    sys.excepthook(RuntimeError, error, None)
    assert manager.is_shut_down
    assert process_group.aborts == 1
    assert "another rank is gone" in capsys.readouterr().err


def test_a_thread_finds_out_that_the_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    monkeypatch.setattr(worker, "on_group_lost", agent.subscribe)
    monkeypatch.setattr(worker, "is_place_trusted", agent.is_place_trusted)
    monkeypatch.setattr(torchft, "STANDSTILL_S", 0.0)
    agent.answers.put(True)
    agent.answers.put(False)
    manager = FakeManager(AbortingGroup())
    any_manager: Any = manager
    assert torchft.attach(any_manager)
    wait_until("it gives up", lambda: manager.is_shut_down)
    wait_until("its thread has ended", lambda: not [one for one in threading.enumerate() if one.name == "ft-place"])


def test_without_an_agent_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FT_INBOX", "FT_CYCLE_ID"):
        monkeypatch.delenv(name, raising=False)
    process_group = ProcessGroupGloo(timedelta(seconds=60))
    manager = FakeManager(process_group)
    start_quorum: Any = manager.start_quorum
    any_manager: Any = manager
    assert not torchft.attach(any_manager)
    assert manager.start_quorum == start_quorum
    assert process_group._timeout == timedelta(seconds=60)
