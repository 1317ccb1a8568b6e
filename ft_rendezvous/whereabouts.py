"""Where a node is: its domain or unit, from the source that a setting names.

A source is `env:<variable>`, `slurm-topology[:<level>]`, `hostname:<regex>`, `nvlink` or `command:<command>`. Reads no
environment of its own and decides nothing; whatever a source cannot tell is an error that names the node.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ft_rendezvous.errors import ConfigError

COMMAND_S = 30.0
"""How long a command may take; nvidia-smi has been seen to take ten seconds on a machine that has just started."""

LONGEST = 200
"""Of a name, in characters: it travels in every arrival."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a source may look at."""

    hostname: str
    env: Mapping[str, str]


def find_name(key: str, source: str, place: Place) -> str:
    """What the source says of this node. Raises ConfigError, naming the setting, the node and the next step."""
    kind, detail = split_source(key, source)
    try:
        name = _FINDERS[kind](detail, place).strip()
    except _NotFound as error:
        raise ConfigError(f"{key}={source} says nothing of node {place.hostname}: {error}") from error
    if not name or len(name) > LONGEST or not name.isprintable():
        raise ConfigError(
            f"{key}={source} says {name[:LONGEST]!r} of node {place.hostname}: one printable line of at most {LONGEST} "
            "characters is needed"
        )
    return name


def split_source(key: str, source: str) -> tuple[str, str]:
    """A source's kind and detail, checked as far as that goes without asking it."""
    kind, colon, detail = source.partition(":")
    if kind not in _FINDERS:
        raise ConfigError(f"{key}={source} is no source: use {', '.join(_FORMS[:-1])} or {_FORMS[-1]}")
    is_plain = kind in ("nvlink", "slurm-topology")
    if (not is_plain and not detail) or (kind == "nvlink" and colon):
        (form,) = (form for form in _FORMS if form.startswith(kind))
        raise ConfigError(f"{key}={source} is no source: the form is {form}")
    if kind == "slurm-topology" and colon and not (detail.isascii() and detail.isdecimal() and int(detail) > 0):
        raise ConfigError(f"{key}={source}: the level is a number, 1 for the switch or block nearest to the node")
    if kind == "hostname":
        try:
            re.compile(detail)
        except re.error as error:
            raise ConfigError(f"{key}={source} is no regular expression: {error}") from error
    return kind, detail


class _NotFound(Exception):
    """The source says nothing of this node; the message says why, and what to do."""


def _from_env(name: str, place: Place) -> str:
    value = place.env.get(name, "")
    if not value.strip():
        raise _NotFound(f"{name} is not set in its environment")
    return value


def _from_slurm(level: str, place: Place) -> str:
    """The path to the switch or block so many levels above the node: what shares its upper part sorts together."""
    address = place.env.get("SLURM_TOPOLOGY_ADDR", "")
    kinds = place.env.get("SLURM_TOPOLOGY_ADDR_PATTERN") or address
    # A node's own name may have dots; the pattern tells how many parts come before it.
    above = address.split(".")[: kinds.count(".")]
    if not above:
        raise _NotFound(
            f"SLURM_TOPOLOGY_ADDR={address} names no switch or block: the cluster needs a TopologyPlugin, and torchrun "
            "must be started by srun"
        )
    depth = len(above) - int(level or 1) + 1
    if depth < 1:
        raise _NotFound(f"SLURM_TOPOLOGY_ADDR={address} has {len(above)} levels above the node")
    return ".".join(above[:depth])


def _from_hostname(regex: str, place: Place) -> str:
    match = re.search(regex, place.hostname)
    if match is None:
        raise _NotFound("its name does not match")
    return "-".join(filter(None, match.groups())) or match.group()


def _from_nvlink(_: str, place: Place) -> str:
    """The NVLink domain and partition of the GPUs: what the fabric manager calls cluster and clique."""
    text = _run(["nvidia-smi", "-q"], place)
    pairs = [tuple(part.strip() for part in line.split(":", 1)) for line in text.splitlines() if ":" in line]
    clusters = {value for name, value in pairs if name == "ClusterUUID" and re.search("[1-9a-f]", value.lower())}
    clusters -= {"N/A"}
    cliques = {value for name, value in pairs if name == "CliqueId" and value != "N/A"}
    if not clusters:
        raise _NotFound("nvidia-smi -q shows no ClusterUUID: its GPUs are in no NVLink domain, or are not ready")
    if len(clusters) > 1 or len(cliques) > 1:
        raise _NotFound(f"its GPUs are in several NVLink domains: {', '.join(sorted(clusters | cliques))}")
    return ".".join([*clusters, *cliques])


def _from_command(command: str, place: Place) -> str:
    lines = _run(["/bin/sh", "-c", command], place).strip().splitlines()
    if len(lines) != 1:
        raise _NotFound(f"the command printed {len(lines)} lines, and one is needed")
    return lines[0]


def _run(command: list[str], place: Place) -> str:
    try:
        done = subprocess.run(
            command, env=dict(place.env), capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except FileNotFoundError as error:
        raise _NotFound(f"{command[0]} is not there") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _NotFound(f"{command[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise _NotFound(f"{command[-1]!r} took longer than {COMMAND_S:g} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise _NotFound(f"{command[-1]!r} exited with {done.returncode} and said: {said[:LONGEST]}")
    return done.stdout


_FINDERS: Mapping[str, Callable[[str, Place], str]] = {
    "env": _from_env,
    "slurm-topology": _from_slurm,
    "hostname": _from_hostname,
    "nvlink": _from_nvlink,
    "command": _from_command,
}
_FORMS = ("env:<variable>", "slurm-topology[:<level>]", "hostname:<regex>", "nvlink", "command:<command>")
