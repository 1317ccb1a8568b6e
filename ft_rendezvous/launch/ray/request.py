"""What the user asks for on a Ray cluster, and which resources that takes. Pure: asks no cluster."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import BATCH_HOST, MAX_RESTARTS, Options, parse_nnodes

HEAD, FIRST_NODE = "head", "first-node"
STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"


@dataclass(frozen=True, kw_only=True)
class RayRequest:
    """The options of `ftr ray`, checked as far as that is possible without a cluster."""

    script: tuple[str, ...]
    nnodes: str = "1"
    """MIN:MAX, as torchrun reads it: at least MIN and at most MAX nodes train."""
    spares: int = 0
    nproc_per_node: str = "1"
    max_restarts: int = MAX_RESTARTS
    cpus_per_node: float = 1.0
    gpus_per_node: float = 0.0
    resources: str = ""
    """More resources of every node, as JSON: `{"tpu": 4}`."""
    strategy: str = ""
    store: str = HEAD
    port: int | None = None
    address: str = ""
    runtime_env: str = ""
    """Ray's runtime environment for the nodes, as JSON."""
    rdzv_conf: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    name: str = ""
    pending_timeout_s: float | None = None
    is_warm: bool = False

    def __post_init__(self) -> None:
        self.sizes  # noqa: B018 - Raises ConfigError.
        if self.spares < 0:
            raise ConfigError(f"--spares {self.spares}: there cannot be fewer than none")
        if self.name and not re.fullmatch(NAME_PATTERN, self.name):
            raise ConfigError(f"--name {self.name!r}: use letters, digits, '.', '_' and '-', at most 63 of them")
        if self.strategy and self.strategy not in STRATEGIES:
            raise ConfigError(f"--strategy {self.strategy} is none of Ray's: use one of {', '.join(STRATEGIES)}")
        if self.store not in (HEAD, FIRST_NODE):
            if not re.search(r":\d+$", self.store):
                raise ConfigError(f"--store {self.store} is neither {HEAD}, {FIRST_NODE} nor HOST:PORT")
            parse_endpoint(self.store)
        for name, amount in self.bundle.items():
            if not 0 <= amount < math.inf:
                raise ConfigError(f"a node cannot have {amount:g} {name}: use 0 or a positive number")
        if self.pending_timeout_s is not None and not self.pending_timeout_s >= 0:
            raise ConfigError(f"--pending-timeout {self.pending_timeout_s:g}: use 0 or a positive number of seconds")
        if not self.bundle:
            raise ConfigError("a node needs resources, or Ray cannot place it: give --cpus-per-node at least 1")
        self.environment  # noqa: B018 - Raises ConfigError.
        self.launch_options([], [])

    @property
    def sizes(self) -> tuple[int, int]:
        """MIN and MAX of nodes that train."""
        least, most = parse_nnodes(self.nnodes)
        if not 0 < least <= most:
            advice = f"{max(1, min(least, most))}:{max(1, least, most)}"
            raise ConfigError(f"--nnodes {self.nnodes}: MIN must be at least 1 and at most MAX: make it {advice}")
        return least, most

    @property
    def node_count(self) -> int:
        """How many nodes are started when the cluster has room."""
        return self.sizes[1] + self.spares

    @property
    def is_elastic(self) -> bool:
        return self.sizes[0] < self.sizes[1]

    @property
    def has_own_store(self) -> bool:
        return self.store in (HEAD, FIRST_NODE)

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one node, in Ray's words."""
        wanted = {"CPU": self.cpus_per_node, "GPU": self.gpus_per_node, **parse_resources(self.resources)}
        return {name: amount for name, amount in wanted.items() if amount}

    @property
    def environment(self) -> dict[str, Any]:
        """Ray's runtime environment."""
        if not self.runtime_env:
            return {}
        try:
            parsed = json.loads(self.runtime_env)
        except ValueError as error:
            raise ConfigError(f"--runtime-env is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ConfigError('--runtime-env is not an object: write {"working_dir": "."}, for example')
        return parsed

    def launch_options(self, torchrun: Sequence[str], ftr: Sequence[str]) -> Options:
        """The same in the words of the other launchers. Raises ConfigError."""
        return Options(
            script=self.script,
            nproc_per_node=(self.nproc_per_node,),
            max_restarts=self.max_restarts,
            conf=self.rdzv_conf,
            store=self.store if not self.has_own_store else BATCH_HOST,
            port=self.port,
            log_dir=self.log_dir,
            torchrun=tuple(torchrun),
            ftr=tuple(ftr),
            is_warm=self.is_warm,
        )

    def describe(self) -> dict[str, Any]:
        """What must be equal when another driver goes on with the run."""
        return {
            "script": list(self.script),
            "nnodes": list(self.sizes),
            "spares": self.spares,
            "nproc_per_node": self.nproc_per_node,
            "resources": self.bundle,
            "strategy": self.strategy,
            "runtime_env": self.runtime_env,
            "store": self.store,
            "rdzv_conf": dict(self.rdzv_conf),
        }


def parse_resources(text: str) -> dict[str, float]:
    """Resources as JSON, or as `name=amount,name=amount`."""
    if not text:
        return {}
    try:
        if text.lstrip().startswith("{"):
            pairs = json.loads(text).items()
        else:
            pairs = [(name.strip(), amount) for name, _, amount in (part.partition("=") for part in text.split(","))]
        if not all(name for name, _ in pairs):
            raise ValueError("a resource has no name")
        return {name: _amount(name, amount) for name, amount in pairs}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"--resources {text}: {error}: write name=amount,name=amount, or JSON") from error


def _amount(name: str, value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name!r} has no amount") from error


def describe_differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Which options are not those of the run that is there; both as `describe` gives them, with the directory."""
    names = [name for name in dict.fromkeys([*asked, *found]) if asked.get(name) != found.get(name)]
    return ", ".join(_describe_directories(asked, found) if name == "directory" else name for name in names)


def _describe_directories(asked: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    here, there = (each.get("directory") or "that Ray copies" for each in (asked, found))
    return f"the working directory {here} instead of {there}"


# --- what a cluster can hold --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RayNodeFacts:
    """One machine of a Ray cluster."""

    id: str
    address: str
    resources: Mapping[str, float]
    """In all, not only what is free."""
    is_head: bool = False

    def fits(self, bundle: Mapping[str, float]) -> int:
        """How many such bundles this machine could hold."""
        room = min((self.resources.get(name, 0.0) / amount for name, amount in bundle.items()), default=0.0)
        return int(room + 1e-9)  # 7 / 0.07 is a little less than 100.


@dataclass(frozen=True, slots=True)
class Spreading:
    """How Ray is asked to spread nodes over machines."""

    strategy: str
    warning: str = ""


def decide_spreading(request: RayRequest, machines: Sequence[RayNodeFacts]) -> Spreading:
    """Each node on a machine of its own, if the cluster has so many. Raises ConfigError if MIN nodes never fit.

    With a `--pending-timeout` more machines may come, so nothing is too much.
    """
    bundle, least = request.bundle, request.sizes[0]
    able = [machine for machine in machines if machine.fits(bundle)]
    room = sum(machine.fits(bundle) for machine in able)
    strategy = request.strategy or ("STRICT_SPREAD" if len(able) >= least else "SPREAD")
    holds = len(able) if strategy == "STRICT_SPREAD" else room
    if strategy == "STRICT_PACK":
        holds = max((machine.fits(bundle) for machine in able), default=0)
    if request.pending_timeout_s is not None:
        return Spreading(request.strategy or ("STRICT_SPREAD" if len(able) >= least or room < least else "SPREAD"))
    if not able:
        raise ConfigError(
            f"no machine of the cluster has {describe_resources(bundle)}: the largest have "
            f"{_largest(bundle, machines)}; ask for less per node, or wait for machines with --pending-timeout"
        )
    if holds < least:
        raise ConfigError(
            f"{least} nodes with {describe_resources(bundle)} each do not fit: the cluster holds {holds} with "
            f"{strategy}; ask for less, or wait for machines with --pending-timeout"
        )
    if not request.strategy and strategy == "SPREAD":
        return Spreading(
            strategy, f"only {len(able)} machines for {least} nodes: some share a machine, and its loss costs several"
        )
    return Spreading(strategy)


def describe_resources(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"


def _largest(bundle: Mapping[str, float], machines: Sequence[RayNodeFacts]) -> str:
    most = {name: max((each.resources.get(name, 0.0) for each in machines), default=0.0) for name in bundle}
    return describe_resources(most)
