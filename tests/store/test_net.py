"""Whether a name means this machine."""

from __future__ import annotations

import pytest

from ft_rendezvous.config.settings import NodeSettings
from ft_rendezvous.store.net import advertised_address, route_to


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "127.255.0.9"])
def test_every_loopback_address_is_this_machine(address: str) -> None:
    """Debian maps a machine's own name to 127.0.1.1. A node whose endpoint has that name must host the store."""
    assert route_to(address, 29400) == ("127.0.0.1", True)


def test_a_machine_known_to_itself_by_loopback_is_reached_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 2, 17, "", ("127.0.1.1", 29400))])
    assert advertised_address(NodeSettings(endpoint_host="head", endpoint_port=29400)) == "head"


def test_an_unknown_name_has_no_route() -> None:
    assert route_to("no-such-host.invalid", 29400) is None
