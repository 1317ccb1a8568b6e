"""A node gathers its own facts from the resolver, the kernel and Python. It connects to no other machine."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ft_rendezvous import __version__
from ft_rendezvous.config.addresses import format_endpoint, is_loopback
from ft_rendezvous.config.load import load_settings, locate_node
from ft_rendezvous.config.settings import NodeSettings, Settings
from ft_rendezvous.core.hosting import HostingRole
from ft_rendezvous.doctor.facts import Lookup, NodeFacts, Route, Software, Step, Torch
from ft_rendezvous.doctor.interfaces import interface_of
from ft_rendezvous.doctor.lookups import ask_all, name_of, seen_as
from ft_rendezvous.doctor.torch_probe import run_probe
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.store import net
from ft_rendezvous.store.names import addresses_of

LOCALHOST = "localhost"
"""The name by which a process that hosts a store connects to it."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of the doctor."""

    host: str
    port: int
    run_id: str = ""
    sizes: tuple[int, int] | None = None
    """MIN and MAX of --nnodes."""
    conf: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0

    @property
    def endpoint(self) -> str:
        return format_endpoint(self.host, self.port)


def gather_facts(options: DoctorOptions, step: Step | None, env: Mapping[str, str]) -> NodeFacts:
    """Gather all facts of this node."""
    hostname = socket.gethostname()
    run, run_error = read_settings(options, step, env, is_node=False)
    node, node_error = (None, "") if run is None else read_settings(options, step, env, is_node=True)
    names = ask_all({name: partial(addresses_of, name) for name in (options.host, hostname, LOCALHOST)})
    routes = net.routes_to(names[options.host].found, options.port)
    route = _find_route(routes)
    seen_at = _addresses_seen(route, names[LOCALHOST])
    reverse = ask_all({address: name_of(address) for address in seen_at})
    # Not while lookups are timed: an import of torch takes all of a small machine.
    torch = run_probe(env, options.timeout_s * 0.75)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    plain = NodeSettings(endpoint_host=options.host, endpoint_port=options.port)
    hosting = net.choose_hosting(plain if node is None else node.node, names[options.host].found)
    return NodeFacts(
        task=0 if step is None else step.task,
        host=env.get("SLURMD_NODENAME") or hostname,
        machine=_machine(),
        pid=os.getpid(),
        infra_rank=None if node is None else node.node.infra_rank,
        domain=None if node is None else node.node.domain_id,
        unit=None if node is None else node.node.unit_id,
        settings={} if run is None else run.run.as_dict(),
        run_error=run_error,
        node_error=node_error,
        is_host=hosting.role is HostingRole.HOST,
        is_hosting_unclear=hosting.role is HostingRole.UNCLEAR,
        hosting_reason=hosting.reason,
        own_addresses=tuple(each.address for each in routes if each.is_here),
        endpoint=names[options.host],
        own_name=names[hostname],
        route=route,
        reverse=tuple(reverse.values()),
        resolver_options=env.get("RES_OPTIONS", ""),
        files_soft=soft,
        files_hard=hard,
        outgoing_ports=_outgoing_ports(),
        software=_describe_software(env, torch),
        step=step,
    )


def read_settings(
    options: DoctorOptions, step: Step | None, env: Mapping[str, str], is_node: bool
) -> tuple[Settings | None, str]:
    """The settings as torchrun's nodes would read them, or why they cannot work."""
    count = 1 if step is None else step.tasks
    min_nodes, max_nodes = options.sizes or (count, count)
    try:
        settings = load_settings(
            endpoint=options.endpoint,
            run_id=options.run_id or "doctor",
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            conf=options.conf,
            env=env,
        )
        settings = locate_node(settings, env) if is_node else settings
    except ConfigError as error:
        return None, str(error)
    return settings, ""


def _find_route(routes: Sequence[net.HostRoute]) -> Route | None:
    found = net.best_route(routes)
    if found is None:
        return None
    local = found.local
    return Route(address=local, is_here=found.is_here, is_loopback=is_loopback(local), interface=interface_of(local))


def _addresses_seen(route: Route | None, localhost: Lookup) -> list[str]:
    """The addresses as which a store may see this node: from outside and from itself, plain and mapped into IPv6."""
    addresses = [*localhost.found] if localhost.found else ["127.0.0.1"]
    if route is not None:
        addresses.append(route.address)
    plain = [address.partition("%")[0] for address in addresses]
    return list(dict.fromkeys([*plain, *(seen_as(address) for address in plain)]))


def _machine() -> str:
    """A text that is equal for all processes with the same kernel and network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def _outgoing_ports() -> tuple[int, int] | None:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return None


def _describe_software(env: Mapping[str, str], torch: Torch) -> Software:
    return Software(
        python=platform.python_version(),
        executable=sys.executable,
        ft_rendezvous=__version__,
        is_registered=any(entry.name == "ft" for entry in entry_points(group="torchrun.handlers")),
        torchrun=shutil.which("torchrun", path=env.get("PATH")) or "",
        torch=torch,
    )
