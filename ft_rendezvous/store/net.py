"""This machine in the network: its address for other nodes, whether a name means it, and listening sockets."""

from __future__ import annotations

import errno
import resource
import socket

from ft_rendezvous.config.addresses import is_loopback
from ft_rendezvous.config.settings import NodeSettings

CONNECTIONS_PER_NODE = 3
"""One for calls, one for events, and for a moment one for the probe."""


def route_to(host: str, port: int) -> tuple[str, bool] | None:
    """The local address from which the route to `host` starts, and whether `host` is this machine.

    None if the name does not resolve. The kernel gives the answer; connecting a datagram socket sends nothing. So
    aliases, second NICs and names without a reverse DNS entry all work: the route to an own address starts at itself.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    remote: str | None = None
    for family, kind, proto, _, address in found:
        try:
            with socket.socket(family, kind, proto) as sock:
                sock.connect(address)
                local = str(sock.getsockname()[0])
        except OSError:
            continue
        if local == str(address[0]) or is_loopback(str(address[0])):
            # All of 127.0.0.0/8 is this machine, and the route to each of it starts at 127.0.0.1.
            return local, True
        remote = remote or local
    return (remote, False) if remote is not None else None


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
    address, is_here = route
    if is_here and is_loopback(address) and not is_loopback(settings.endpoint_host):
        return settings.endpoint_host
    return address


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
    """How many open files the store host of a run with `max_nodes` nodes may need."""
    return CONNECTIONS_PER_NODE * max_nodes + 256


def raise_file_limit(wanted: int) -> int:
    """Allow this process `wanted` open files, or as many as the system allows. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
