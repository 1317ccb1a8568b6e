"""This machine's place in the network: which address others reach it at, and whether a name means it."""

from __future__ import annotations

import socket

from ft_rendezvous.settings import NodeSettings, is_loopback


def route_to(host: str, port: int) -> tuple[str, bool] | None:
    """The local address that routes to `host`, and whether `host` is this machine; None if unresolvable.

    Asks the kernel (connecting a datagram socket sends nothing), so aliases, second NICs and names that DNS
    does not know by reverse are all seen right: the route to one of our own addresses starts at itself.
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
        if local == str(address[0]):
            return local, True
        remote = remote or local
    return (remote, False) if remote is not None else None


def advertised_address(settings: NodeSettings) -> str:
    """The address other nodes reach this one at.

    A name that resolves to loopback here (Debian's 127.0.1.1) means the endpoint names this very machine, and
    then the others reach us by that name, as they reach the endpoint.
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
