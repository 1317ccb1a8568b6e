"""The host of the store stays while other nodes need it."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from ft_rendezvous.host.staying import stay_while_needed


class FakeHost:
    """A host whose run is closed after some looks; `counts` are the nodes in the run, look by look."""

    def __init__(self, *counts: int, closes: bool = True) -> None:
        self._counts = list(counts)
        self._closes = closes
        self.looks = 0

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002
        return self._closes and self.looks == len(self._counts)

    @property
    def node_count(self) -> int:
        self.looks += 1
        return self._counts[min(self.looks, len(self._counts)) - 1]


def stay(host: FakeHost, join_s: float = 600.0, signals: tuple[signal.Signals | None, ...] = ()) -> None:
    any_host: Any = host
    coming = iter(signals)
    stay_while_needed(any_host, join_s, lambda: next(coming, None))


def test_a_host_leaves_when_the_run_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    host = FakeHost(2, 1, 1)
    stay(host)
    assert host.looks == 3
    assert "staying until every other node has gone" in caplog.text


def test_a_run_that_has_ended_needs_no_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stay(FakeHost())
    assert caplog.records == []


def test_a_signal_does_not_take_the_store_from_other_nodes(caplog: pytest.LogCaptureFixture) -> None:
    host = FakeHost(2, 2, 2, 1)
    stay(host, signals=(None, signal.SIGTERM))
    assert host.looks == 4
    assert "SIGTERM: staying, because other nodes need the store on this node (2)" in caplog.text


def test_a_signal_ends_the_wait_of_a_host_that_is_alone() -> None:
    host = FakeHost(2, 0, 0, closes=False)
    stay(host, signals=(None, None, signal.SIGTERM))
    assert host.looks == 3


def test_a_host_that_stays_alone_leaves_after_the_join_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    host = FakeHost(0, 1, 0, 0, 0, closes=False)
    stay(host, join_s=25)
    # At 20 s a node is there, so the host waits until 45 s.
    assert host.looks == 5
