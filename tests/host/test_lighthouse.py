"""A real lighthouse, asked by torchft's own managers: it survives its death, and not its host's."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.lighthouse import QUORUM_ID_MARGIN, Lighthouse, find_extension
from ft_rendezvous.host.lighthouse_main import load_extension
from ft_rendezvous.host.lighthouse_rules import LighthouseRules
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")

WAIT = timedelta(seconds=WAIT_S)
RULES = LighthouseRules(
    min_replicas=2, heartbeat_timeout_s=0.5, join_timeout_s=60.0, tick_s=0.05, silence_timeout_s=1.0
)

HOST = """
import sys
from ft_rendezvous.host.lighthouse import Lighthouse
from tests.host.test_lighthouse import RULES
lighthouse = Lighthouse.start(RULES, "127.0.0.1")
assert lighthouse.wait_until_ready(120)
print(lighthouse.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def torchft() -> Any:
    return load_extension(find_extension())


@pytest.fixture
def lighthouse() -> Iterator[Lighthouse]:
    lighthouse = Lighthouse.start(RULES, "127.0.0.1")
    assert lighthouse.wait_until_ready(WAIT_S)
    yield lighthouse
    lighthouse.close()


class Group:
    """A manager and its one worker."""

    def __init__(self, torchft: Any, name: str, address: str) -> None:
        self._server = torchft.ManagerServer(
            replica_id=name,
            lighthouse_addr=address,
            hostname="127.0.0.1",
            bind="127.0.0.1:0",
            store_addr="127.0.0.1:1",
            world_size=1,
            heartbeat_interval=timedelta(seconds=0.1),
            connect_timeout=WAIT,
            quorum_retries=600,
        )
        self._client = torchft.ManagerClient(self._server.address(), connect_timeout=WAIT)

    def join(self) -> Any:
        return self._client._quorum(
            group_rank=0,
            step=1,
            checkpoint_metadata="",
            shrink_only=False,
            timeout=WAIT,
            commit_failures=0,
            init_sync=False,
        )

    def end(self) -> None:
        self._server.shutdown()


@contextlib.contextmanager
def groups(torchft: Any, address: str) -> Iterator[tuple[Group, Group]]:
    pair = (Group(torchft, "0:a", address), Group(torchft, "1:b", address))
    try:
        yield pair
    finally:
        for group in pair:
            group.end()


def join_all(pair: tuple[Group, Group]) -> int:
    """The id of their next quorum."""
    with ThreadPoolExecutor() as pool:
        quorums = list(pool.map(Group.join, pair))
    assert [list(quorum.replica_ids) for quorum in quorums] == [["0:a", "1:b"]] * 2
    (quorum_id,) = {quorum.quorum_id for quorum in quorums}
    return int(quorum_id)


def wait_for_another(lighthouse: Lighthouse, former_pid: int) -> None:
    wait_until("another one runs", lambda: lighthouse.pid not in (former_pid, None))


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_groups_find_each_other_and_a_new_lighthouse_goes_on_counting(
    lighthouse: Lighthouse, torchft: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with groups(torchft, lighthouse.address) as pair:
        assert join_all(pair) == 1
        assert join_all(pair) == 1, "the same members, the same quorum"
        former_id, address = 1, lighthouse.address
        for _ in range(2):
            killed = lighthouse.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            wait_for_another(lighthouse, killed)
            quorum_id = join_all(pair)
            assert quorum_id >= former_id + QUORUM_ID_MARGIN
            former_id = quorum_id
        assert lighthouse.address == address
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "the lighthouse ended: exit code -9; another one starts" in warnings[0]


def test_a_group_that_waits_is_not_silent(lighthouse: Lighthouse, torchft: Any) -> None:
    """It waits for several silence timeouts for the other group, which comes when the test has seen that."""
    silence_s = RULES.silence_timeout_s
    with groups(torchft, lighthouse.address) as (early, late), ThreadPoolExecutor() as pool:
        waiting = pool.submit(early.join)
        with pytest.raises(TimeoutError):
            waiting.result(3 * silence_s)
        late.join()
        assert waiting.result(WAIT_S).quorum_id == 1


def test_a_silent_client_is_cut_off(lighthouse: Lighthouse) -> None:
    port = int(lighthouse.address.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        while client.recv(4096):  # The lighthouse greets.
            pass


def test_a_close_leaves_nothing() -> None:
    lighthouse = Lighthouse.start(RULES, "127.0.0.1")
    assert lighthouse.wait_until_ready(WAIT_S)
    pid, port = lighthouse.pid, int(lighthouse.address.rpartition(":")[2])
    assert pid is not None
    lighthouse.close()
    lighthouse.close()
    assert is_gone(pid)
    again = Lighthouse.start(RULES, "::1", port)
    assert again.address == f"http://[::1]:{port}"
    assert again.wait_until_ready(WAIT_S)
    again.close()


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(ConfigError, match="choose another port"):
        Lighthouse.start(RULES, "127.0.0.1", taken.getsockname()[1])


def test_a_killed_host_leaves_no_lighthouse() -> None:
    program = (sys.executable, "-c", HOST)
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert not is_gone(pid)
        host.kill()
    wait_until("the lighthouse has ended", lambda: is_gone(pid))


def test_without_torchft_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ft-rendezvous\[torchft\]'"):
        Lighthouse.start(RULES, "127.0.0.1")
