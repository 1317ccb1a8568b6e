"""Finds a node's domain or unit from the source that a setting names.

A source is `env:<variable>`, `slurm-topology[:<level>]`, `hostname:<regex>`, `nvlink` or `command:<command>`. The
caller passes the environment. If a source gives no name, the error names the node and the next step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ft_rendezvous.config.commands import CommandNotStarted, CommandTimeout, run_command
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.text import MAX_NAME_CHARS

COMMAND_TIMEOUT_S = 30.0
"""How long a command may take. nvidia-smi can take ten seconds on a machine that has just started."""


@dataclass(frozen=True, slots=True)
class SourceInput:
    """What a source may use."""

    hostname: str
    env: Mapping[str, str]


def find_name(key: str, source: str, place: SourceInput) -> str:
    """The name that the source gives this node. Raises ConfigError with the setting, the node and the next step."""
    kind, detail = split_source(key, source)
    try:
        name = _FINDERS[kind](detail, place)
    except _NotFound as error:
        raise ConfigError(f"{key}={source} says nothing of node {place.hostname}: {error}") from error
    return check_name(f"{key}={source}", name, place)


def check_name(origin: str, name: str, place: SourceInput) -> str:
    """The name, if it is short and printable: every arrival carries it, and log lines show it."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigError(
            f"{origin} says {name[:MAX_NAME_CHARS]!r} of node {place.hostname}: "
            f"make it one printable line of at most {MAX_NAME_CHARS} characters"
        )
    return name


def split_source(key: str, source: str) -> tuple[str, str]:
    """Kind and detail of a source. Checks its form, and does not use it."""
    kind, colon, detail = source.partition(":")
    if kind not in _FINDERS:
        raise ConfigError(f"{key}={source} is no source: use {', '.join(_FORMS[:-1])} or {_FORMS[-1]}")
    is_plain = kind in ("nvlink", "slurm-topology")
    if (not is_plain and not detail) or (kind == "nvlink" and colon):
        (form,) = (form for form in _FORMS if form.startswith(kind))
        raise ConfigError(f"{key}={source} is no source: the form is {form}")
    if kind == "slurm-topology" and colon and not re.fullmatch("[1-9][0-9]?", detail):
        raise ConfigError(f"{key}={source}: the level is a number, 1 for the switch or block nearest to the node")
    if kind == "hostname":
        try:
            re.compile(detail)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{key}={source} is no regular expression: {error}") from error
    return kind, detail


class _NotFound(Exception):
    """The source gives no name for this node. The message says why, and what to do."""


def _from_env(name: str, place: SourceInput) -> str:
    value = place.env.get(name, "")
    if not value.strip():
        raise _NotFound(f"{name} is not set in its environment: set it before torchrun starts")
    return value


def _from_slurm(level: str, place: SourceInput) -> str:
    """The path to the switch or block `level` levels above the node. Paths of neighbours sort together."""
    address = place.env.get("SLURM_TOPOLOGY_ADDR", "")
    kinds = place.env.get("SLURM_TOPOLOGY_ADDR_PATTERN") or address
    # A node's own name may have dots. The pattern tells how many parts come before it.
    above = address.split(".")[: kinds.count(".")]
    if not above:
        raise _NotFound(
            f"SLURM_TOPOLOGY_ADDR={address} names no switch or block: the cluster needs a TopologyPlugin, and torchrun "
            "must be started by srun"
        )
    depth = len(above) - int(level or 1) + 1
    if depth < 1:
        raise _NotFound(f"SLURM_TOPOLOGY_ADDR={address} has no level {level}, only {len(above)}: choose a lower one")
    return ".".join(above[:depth])


def _from_hostname(regex: str, place: SourceInput) -> str:
    match = re.search(regex, place.hostname)
    if match is None:
        raise _NotFound("its name does not match: change the expression, or give this node its own domain= or unit=")
    return "-".join(filter(None, match.groups())) or match.group()


def _from_nvlink(_: str, place: SourceInput) -> str:
    """The NVLink domain and partition of the GPUs. The fabric manager calls them cluster and clique."""
    found: set[str] = set()
    for fabric in _fabrics(_run(["nvidia-smi", "-q"], "nvidia-smi -q", place)):
        cluster = fabric.get("ClusterUUID", "")
        is_ready = fabric.get("State") == "Completed" and fabric.get("Status") == "Success"
        if not (is_ready and _UUID.fullmatch(cluster) and cluster.strip("0-")):
            facts = ", ".join(f"{name} {value}" for name, value in fabric.items()) or "nothing"
            raise _NotFound(
                f"nvidia-smi -q says of the fabric of a GPU: {facts}: start nvidia-fabricmanager (or imex), and wait "
                "until every GPU's state is Completed"
            )
        found.add(f"{cluster}.{fabric.get('CliqueId', 'N/A')}".removesuffix(".N/A"))
    if not found:
        raise _NotFound("nvidia-smi -q shows no fabric: its GPUs are in no NVLink domain, use another source")
    if len(found) > 1:
        raise _NotFound(
            f"its GPUs are in several NVLink domains: {', '.join(sorted(found))}: give it a domain= by hand"
        )
    return found.pop()


_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _fabrics(text: str) -> list[dict[str, str]]:
    """The `Fabric` section of every GPU in the output of `nvidia-smi -q`."""
    fabrics: list[dict[str, str]] = []
    depth: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() == "Fabric":
            depth = indent
            fabrics.append({})
        elif depth is not None and indent > depth and ":" in line:
            name, _, value = line.partition(":")
            fabrics[-1][name.strip()] = value.strip()
        else:
            depth = None
    return fabrics


def _from_command(command: str, place: SourceInput) -> str:
    lines = _run(["/bin/sh", "-c", command], "the command", place).strip().splitlines()
    if len(lines) != 1:
        raise _NotFound(f"the command printed {len(lines)} lines: make it print one")
    return lines[0]


def _run(command: list[str], called: str, place: SourceInput) -> str:
    """What a command prints."""
    try:
        done = run_command(command, timeout_s=COMMAND_TIMEOUT_S, env=place.env)
    except CommandNotStarted as error:
        raise _NotFound(f"{called} could not be started: {error}: install it, or use another source") from error
    except CommandTimeout:
        raise _NotFound(f"{called} has not ended within {COMMAND_TIMEOUT_S:g} s: make it quicker") from None
    if done.exit_code != 0:
        raise _NotFound(f"{called} exited with {done.exit_code} and said: {done.last_line[:MAX_NAME_CHARS]}")
    return done.stdout.decode(errors="surrogateescape")


_FINDERS: Mapping[str, Callable[[str, SourceInput], str]] = {
    "env": _from_env,
    "slurm-topology": _from_slurm,
    "hostname": _from_hostname,
    "nvlink": _from_nvlink,
    "command": _from_command,
}
_FORMS = ("env:<variable>", "slurm-topology[:<level>]", "hostname:<regex>", "nvlink", "command:<command>")
