"""This machine in the network: its address for other nodes, whether a name means it, and listening sockets."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ft_rendezvous.config.addresses import is_loopback
from ft_rendezvous.config.settings import NodeSettings
from ft_rendezvous.core.hosting import Hosting, decide_hosting
from ft_rendezvous.store import names

CONNECTIONS_PER_NODE = 3
"""One for calls, one for events, and for a moment one for the probe. Another process holds the lifelines."""
FILES_BESIDE = 256
"""What such a process has open beside the connections of nodes."""


@dataclass(frozen=True, slots=True)
class HostRoute:
    """How this machine reaches one address."""

    address: str
    local: str
    """The address from which the route starts."""
    is_here: bool
    """Whether the address is this machine's."""


def routes_to(addresses: Iterable[str], port: int) -> list[HostRoute]:
    """The routes to those addresses to which there is one.

    The kernel gives the answer; connecting a datagram socket sends nothing. So aliases, second NICs and names without a
    reverse DNS entry all work: the route to an own address starts at itself.
    """
    routes = []
    for address in addresses:
        local = _local_address(address, port)
        if local is not None:
            # All of 127.0.0.0/8 is this machine, and the route to each of it starts at 127.0.0.1.
            routes.append(HostRoute(address, local, is_here=local == address or is_loopback(address)))
    return routes


def _local_address(address: str, port: int) -> str | None:
    try:
        ((family, kind, proto, _, target), *_) = socket.getaddrinfo(
            address, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, kind, proto) as sock:
            sock.connect(target)
            return str(sock.getsockname()[0])
    except OSError:
        return None


def route_to(host: str, port: int) -> HostRoute | None:
    """The best route to `host`. None if there is no route, or if the name does not resolve."""
    try:
        return best_route(routes_to(names.RESOLVER.look_up(host), port))
    except (names.UnknownName, names.SilentResolver):
        return None


def best_route(routes: Sequence[HostRoute]) -> HostRoute | None:
    """The route to an own address, if there is one; else the first."""
    return next((route for route in routes if route.is_here), routes[0] if routes else None)


def choose_hosting(settings: NodeSettings, addresses: Iterable[str]) -> Hosting:
    """Whether this node hosts the store, when the endpoint has these addresses."""
    known = frozenset(addresses)
    own = frozenset(route.address for route in routes_to(known, settings.endpoint_port) if route.is_here)
    return decide_hosting(settings.identity, settings.endpoint_host, known, own)


def advertised_address(settings: NodeSettings) -> str:
    """The address at which other nodes reach this node.

    If the endpoint's name resolves to a loopback address here (Debian's 127.0.1.1), the endpoint is this machine. Then
    other nodes reach it by that name, as they reach the endpoint.
    """
    if settings.local_addr:
        return settings.local_addr
    route = route_to(settings.endpoint_host, settings.endpoint_port)
    if route is None:
        return socket.gethostname()
    if route.is_here and is_loopback(route.local) and not is_loopback(settings.endpoint_host):
        return settings.endpoint_host
    return route.local


# --- listening --------------------------------------------------------------------------------------


def listen(port: int = 0) -> socket.socket:
    """A listening socket on all addresses, IPv6 and IPv4 if both exist. Raises OSError if the port is taken."""
    if socket.has_ipv6:
        try:
            return _listen(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return _listen(socket.AF_INET, "0.0.0.0", port)


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(16384)
    except OSError:
        sock.close()
        raise
    return sock


def files_wanted(max_nodes: int) -> int:
    """How many open files the store host of a run with `max_nodes` nodes may need, in the process of the store."""
    return CONNECTIONS_PER_NODE * max_nodes + FILES_BESIDE


def lifeline_files_wanted(max_nodes: int) -> int:
    """How many open files the process may need that holds the lifelines of a run: one for each node."""
    return max_nodes + FILES_BESIDE


def most_files() -> float:
    """How many open files this process, and each that it starts, may allow itself: the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else hard


def raise_file_limit(wanted: int) -> int:
    """Allow this process `wanted` open files, or as many as the system allows. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
