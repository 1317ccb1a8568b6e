"""Whether a name means this machine."""

from __future__ import annotations

import pytest

from ft_rendezvous.config.settings import NodeSettings
from ft_rendezvous.core.hosting import HostingRole
from ft_rendezvous.store import names
from ft_rendezvous.store.net import HostRoute, advertised_address, choose_hosting, route_to, routes_to


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "127.255.0.9"])
def test_every_loopback_address_is_this_machine(address: str) -> None:
    """Debian maps a machine's own name to 127.0.1.1. A node whose endpoint has that name must host the store."""
    assert route_to(address, 29400) == HostRoute(address, "127.0.0.1", is_here=True)


def test_a_machine_known_to_itself_by_loopback_is_reached_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "RESOLVER", names.Resolver(lambda _: ["127.0.1.1"]))
    assert advertised_address(NodeSettings(endpoint_host="head", endpoint_port=29400)) == "head"


def test_an_unknown_name_has_no_route() -> None:
    assert route_to("no-such-host.invalid", 29400) is None


def test_what_is_no_address_has_no_route() -> None:
    assert routes_to(["head", "127.0.0.1"], 29400) == [HostRoute("127.0.0.1", "127.0.0.1", is_here=True)]


@pytest.mark.parametrize(("job_index", "role"), [(0, HostingRole.HOST), (1, HostingRole.CLIENT)])
def test_a_node_knows_which_addresses_are_its_own(job_index: int, role: HostingRole) -> None:
    """192.0.2.1 belongs to no machine."""
    node = NodeSettings(endpoint_host="train", endpoint_port=29400, job_index=job_index)
    assert choose_hosting(node, ["127.0.0.1", "192.0.2.1"]).role is role
    assert choose_hosting(node, ["192.0.2.1"]).role is HostingRole.CLIENT
