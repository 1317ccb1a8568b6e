"""A worker knows who it is and can send messages to its agent. Without an agent nothing happens."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from ft_rendezvous import worker
from ft_rendezvous.agent.worker_inbox import WorkerInbox
from ft_rendezvous.agent.worker_messages import CheckpointMessage, DrainMessage, RestartMessage, WorkerMessage
from ft_rendezvous.text import MAX_REASON_CHARS
from tests.support.waiting import WAIT_S
from tests.worker.inbox_rig import CYCLE_ID, ENVIRON, InboxRig, open_fds

CALLS: list[Callable[[], bool]] = [lambda: worker.request_restart("slow"), worker.request_drain, worker.at_checkpoint]
by_call = pytest.mark.parametrize("call", CALLS, ids=["restart", "drain", "checkpoint"])

WORKER = """
from ft_rendezvous import worker
print(worker.info().rank, worker.request_restart("a\\nb"), worker.request_drain(), worker.at_checkpoint())
"""

AGENT = """
from ft_rendezvous.agent.worker_inbox import WorkerInbox
print(WorkerInbox(print).address, flush=True)
input()
"""


# --- who this worker is -----------------------------------------------------------------------------


@pytest.mark.usefixtures("worker_inbox")
def test_a_worker_knows_its_place() -> None:
    assert worker.info() == worker.WorkerInfo(
        run_id="job",
        cycle_id=CYCLE_ID,
        rank=5,
        world_size=8,
        node_rank=1,
        role="trainer",
        domain="rack3",
        infra_rank=12,
    )


@pytest.mark.usefixtures("worker_inbox")
def test_what_the_settings_of_a_node_do_not_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_NODE_DOMAIN", "")
    monkeypatch.setenv("FT_NODE_INFRA_RANK", "")
    info = worker.info()
    assert info is not None
    assert info.domain is None
    assert info.infra_rank is None


def test_elsewhere_there_is_no_info() -> None:
    assert worker.info() is None


@pytest.mark.usefixtures("worker_inbox")
@pytest.mark.parametrize(
    ("name", "value"), [("FT_CYCLE_ID", None), ("FT_CYCLE_ID", "x"), ("RANK", "-1"), ("RANK", "²")]
)
def test_half_an_environment_is_none(name: str, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, an agent's own environment has the cycle and no rank."""
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert worker.info() is None


# --- messages ---------------------------------------------------------------------------------------


def test_the_messages_of_a_worker_process_are_received(inbox: InboxRig) -> None:
    environ = {**os.environ, **inbox.environ}
    process = subprocess.run((sys.executable, "-c", WORKER), env=environ, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["5", "True", "True", "True"]
    assert inbox.hear() == RestartMessage(cycle_id=CYCLE_ID, local_rank=2, reason="a b")
    assert inbox.hear() == DrainMessage(cycle_id=CYCLE_ID, local_rank=2, reason="")
    assert inbox.hear() == CheckpointMessage(cycle_id=CYCLE_ID, local_rank=2)


def test_a_long_reason_is_cut(worker_inbox: InboxRig) -> None:
    assert worker.request_drain("😀" * 100_000)
    assert worker_inbox.hear() == DrainMessage(cycle_id=CYCLE_ID, local_rank=2, reason="😀" * MAX_REASON_CHARS)


def test_a_message_leaves_no_descriptor(worker_inbox: InboxRig) -> None:
    before = open_fds()
    assert worker.at_checkpoint()
    worker_inbox.close()
    assert not worker.at_checkpoint()
    assert open_fds() < before, "only the inbox's own descriptor is gone"


# --- without an agent--------------------------------------------------------------------------------


@by_call
def test_without_this_backend_nothing_happens(call: Callable[[], bool]) -> None:
    before = open_fds()
    assert not call()
    assert open_fds() == before


@by_call
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FT_INBOX", ""),
        ("FT_INBOX", "@ft-rendezvous/gone"),
        ("FT_INBOX", "@" + "x" * 200),
        ("FT_INBOX", "/tmp/inbox"),
        ("FT_INBOX", "@\udcff"),
        ("FT_CYCLE_ID", ""),
        ("FT_CYCLE_ID", "x"),
        ("LOCAL_RANK", ""),
    ],
)
def test_a_broken_environment_is_no_error(
    call: Callable[[], bool], name: str, value: str, worker_inbox: InboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert not call()
    assert worker_inbox.close() == []


@by_call
def test_a_killed_agent_receives_nothing(call: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen((sys.executable, "-c", AGENT), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            monkeypatch.setenv("FT_INBOX", agent.stdout.readline().decode().strip())
            assert call()
        finally:
            agent.send_signal(signal.SIGKILL)
    assert not call()


def test_a_full_inbox_drops_the_message_and_the_worker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[WorkerMessage] = []
    goes_on = threading.Event()

    def receive(message: WorkerMessage) -> None:
        assert goes_on.wait(WAIT_S)
        received.append(message)

    inbox = WorkerInbox(receive)
    try:
        for name, value in {**ENVIRON, "FT_INBOX": inbox.address}.items():
            monkeypatch.setenv(name, value)
        sent = sum(1 for _ in itertools.takewhile(lambda no: worker.request_restart(str(no)), itertools.count()))
        assert sent > 0
    finally:
        goes_on.set()
        inbox.close()
    assert [message.reason for message in received if isinstance(message, RestartMessage)] == [
        str(no) for no in range(sent)
    ]


# --- what it costs ----------------------------------------------------------------------------------


def test_the_import_is_cheap() -> None:
    """A fresh interpreter loads the standard library and a handful of small modules of ours."""
    program = "import sys; before = set(sys.modules); import ft_rendezvous.worker; print(*set(sys.modules) - before)"
    loaded = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True).stdout.split()
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    ours: tuple[str, ...] = ("agent", "agent.datagrams", "agent.progress_cells", "agent.update_message")
    ours += ("agent.worker_messages", "env_names", "text", "worker")
    assert foreign == {"ft_rendezvous", *(f"ft_rendezvous.{name}" for name in ours)}
