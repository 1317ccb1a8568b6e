"""The socket and the store that a node has for the workers of a world it leads."""

from __future__ import annotations

import pytest

from ft_rendezvous.store.net import listen
from ft_rendezvous.store.raw_client import Found, probe
from ft_rendezvous.store.worker_store import Bootstrap


def test_a_port_is_announced_in_one_cycle_only() -> None:
    """A seal may have named it although this node never heard of that seal."""
    bootstrap = Bootstrap()
    first = bootstrap.hold(1, "a")
    bootstrap.retire()
    assert bootstrap.hold(1, "a") == first
    second = bootstrap.hold(2, "a")
    assert second != first
    listen(first).close()
    bootstrap.release()
    listen(second).close()


def test_every_world_that_a_node_leads_meets_at_another_port() -> None:
    bootstrap = Bootstrap()
    first = bootstrap.hold(1, "a")
    bootstrap.serve()
    assert probe("127.0.0.1", first) is Found.STORE
    second = bootstrap.hold(2, "a")
    assert second != first
    bootstrap.retire()
    with pytest.raises(OSError, match="in use"):
        listen(second)
    bootstrap.release()


def test_workers_may_listen_where_a_node_has_let_go() -> None:
    bootstrap = Bootstrap()
    port = bootstrap.hold(1, "a")
    bootstrap.release()
    listen(port).close()
