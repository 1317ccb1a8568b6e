"""Endpoints and addresses as text. It never looks a name up."""

from __future__ import annotations

import ipaddress

from ft_rendezvous.config.schema import is_digits
from ft_rendezvous.errors import ConfigError

DEFAULT_PORT = 29400


def format_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of `host[:port]`, `[v6]:port` or a bare IPv6 address."""
    text = text.strip()
    if not text:
        return "localhost", DEFAULT_PORT
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port_text = text, ""
    else:
        host, _, port_text = text.partition(":")
    if not host or (port_text and not (is_digits(port_text) and 0 < int(port_text) < 65536)):
        raise ConfigError(f"endpoint {text!r} is not host:port, for example --rdzv-endpoint=node1:29400")
    return host, int(port_text) if port_text else DEFAULT_PORT


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
