"""The connection to a cluster, without one."""

from __future__ import annotations

import threading

import pytest

ray = pytest.importorskip("ray")

from ft_rendezvous.launch.ray import cluster  # noqa: E402 - It needs Ray.


def test_a_disconnection_that_waits_for_a_lost_machine_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the run is known. Ray itself may wait much longer."""
    machine_is_back, has_ended = threading.Event(), threading.Event()

    def shutdown() -> None:
        machine_is_back.wait()
        has_ended.set()

    monkeypatch.setattr(cluster, "DISCONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    cluster.disconnect()
    assert not has_ended.is_set()
    machine_is_back.set()
    assert has_ended.wait(60.0), "it goes on meanwhile"


def test_a_disconnection_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended: list[bool] = []
    monkeypatch.setattr(cluster, "DISCONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(ray, "shutdown", lambda: has_ended.append(True))
    cluster.disconnect()
    assert has_ended
