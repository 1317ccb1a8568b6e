"""The socket and the store that a node has for the workers of a world it leads."""

from __future__ import annotations

import pytest

from ft_rendezvous.store.net import listen
from ft_rendezvous.store.raw_client import Found, probe
from ft_rendezvous.store.worker_store import Bootstrap


def test_a_socket_that_no_world_was_told_of_is_kept_for_the_next() -> None:
    bootstrap = Bootstrap()
    port = bootstrap.hold()
    bootstrap.retire()
    assert bootstrap.hold() == port
    bootstrap.release()
    listen(port).close()


def test_every_world_that_a_node_leads_meets_at_another_port() -> None:
    bootstrap = Bootstrap()
    first = bootstrap.hold()
    bootstrap.serve()
    assert probe("127.0.0.1", first) is Found.STORE
    second = bootstrap.hold()
    assert second != first
    bootstrap.retire()
    with pytest.raises(OSError, match="in use"):
        listen(second)
    bootstrap.release()


def test_workers_may_listen_where_a_node_has_let_go() -> None:
    bootstrap = Bootstrap()
    port = bootstrap.hold()
    bootstrap.release()
    listen(port).close()
