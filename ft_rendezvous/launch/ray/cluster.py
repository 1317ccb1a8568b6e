"""Everything that is asked of Ray: connecting, machines, placement groups and actors. Decides nothing.

Every call that Ray could leave without an answer has a timeout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray.actors import NodeActor, RunActor
from ft_rendezvous.launch.ray.request import RayNodeFacts

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError("Ray is not installed: pip install 'ft-rendezvous[ray]'") from error

NAMESPACE = "ftr"
"""All runs are in one namespace of Ray, so that any driver finds them."""
PROBE_TIMEOUT_S = 5.0
START_TIMEOUT_S = 600.0
"""How long the first actor may take to start: Ray may install packages for it."""
CALL_TIMEOUT_S = 30.0
CONCURRENT_CALLS = 8
"""Calls that one actor answers at the same time. One of them waits for the end of torchrun."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HEAD_RESOURCE = "node:__internal_head__"


# --- connecting ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(address: str, environment: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Connected to a cluster; all actors have this runtime environment. Raises ConfigError if that cannot be."""
    address = address or os.environ.get("RAY_ADDRESS", "") or "auto"
    _probe(address)
    has_connected = not ray.is_initialized()
    if has_connected:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                runtime_env=dict(environment or {}),
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster was found ({_first_line(error)}): start one with `ray start --head`, or give --address"
            ) from error
        except RuntimeError as error:
            raise ConfigError(
                f"this process cannot use the cluster: {_first_line(error)}: use its versions of Python and Ray"
            ) from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"Ray does not take --runtime-env: {_first_line(error)}") from error
    try:
        yield
    finally:
        if has_connected:
            ray.shutdown()


def _probe(address: str) -> None:
    """Ray itself tries for minutes to reach an address where nothing is."""
    if address in ("auto", "local"):
        return
    if address.startswith("ray://"):
        raise ConfigError(f"{address} is Ray Client: start the launcher inside, with `ray job submit -- ftr ray ...`")
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        raise ConfigError(f"--address {address} is not HOST:PORT, for example 10.0.0.1:6379")
    dialed = host.strip("[]")
    if dialed in LOOPBACK_NAMES:
        dialed = ray.util.get_node_ip_address()  # Ray dials this address instead.
    try:
        socket.create_connection((dialed, int(port)), PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {dialed}:{port}: {error.strerror or error}: is it up, and is --address the one "
            "that `ray start` printed?"
        ) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# --- machines -----------------------------------------------------------------------------------------


def machines() -> list[RayNodeFacts]:
    """All machines that Ray takes for alive."""
    return [
        RayNodeFacts(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            resources=node["Resources"],
            is_head=HEAD_RESOURCE in node["Resources"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


# --- placement groups ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundleSeat:
    """Where the resources of one node are: a bundle of a placement group."""

    group: str
    bundle: int


def request_seats(name: str, seats: Sequence[BundleSeat], resources: Mapping[str, float], strategy: str) -> None:
    """Ask for a placement group for these seats, all or nothing. Returns at once."""
    bundles = [dict(resources) for _ in seats]
    placement_group(bundles, strategy=strategy, name=f"{name}/{seats[0].group}", lifetime="detached")


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A placement group that Ray knows."""

    id: str
    size: int
    is_placed: bool
    machines: Mapping[int, str]
    """The machine of each bundle that has one."""


def groups_of(name: str) -> dict[str, GroupFacts]:
    """All placement groups of a run, by their names without the run's."""
    found: dict[str, GroupFacts] = {}
    for id_, facts in placement_group_table().items():
        prefix, _, group = str(facts["name"]).partition("/")
        if prefix == name and group and facts["state"] != "REMOVED":
            placed = {int(index): str(machine) for index, machine in facts["bundles_to_node_id"].items() if machine}
            # If a machine is lost, the other bundles of its group keep their places.
            is_placed = facts["state"] in ("CREATED", "RESCHEDULING")
            found[group] = GroupFacts(id_, len(facts["bundles"]), is_placed, placed)
    return found


def _handle(id_: str) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(id_)))


# --- actors -------------------------------------------------------------------------------------------


def node_name(name: str, node: int, start: int) -> str:
    return f"{name}/node-{node}.{start}"


def start_node_actor(name: str, group: GroupFacts, bundle: int, resources: Mapping[str, float]) -> Any:
    """Ask for an actor with this name in a bundle. Ray says later whether it could start."""
    others = {key: value for key, value in resources.items() if key not in ("CPU", "GPU")}
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_concurrency": CONCURRENT_CALLS,
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": others,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(_handle(group.id), bundle),
    }
    return ray.remote(NodeActor).options(**options).remote()


def start_run_actor(name: str, manifest: Mapping[str, Any], driver: str, machine: str) -> Any:
    """Start the actor of the run on this machine. Raises ConfigError if a run has this name, or RayError."""
    options = {
        "name": f"{name}/run",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_concurrency": CONCURRENT_CALLS,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=False),
    }
    try:
        return ray.remote(RunActor).options(**options).remote(dict(manifest), driver)
    except ValueError as error:
        raise ConfigError(f"a run with the name {name} has just been started: choose another --name") from error


def find_actors(name: str) -> dict[str, Any]:
    """All live actors of a run, by their names without the run's."""
    found: dict[str, Any] = {}
    for each in ray.util.list_named_actors(all_namespaces=True):
        prefix, _, rest = each["name"].partition("/")
        if each["namespace"] == NAMESPACE and prefix == name and rest:
            with contextlib.suppress(ValueError):  # It has just ended.
                found[rest] = ray.get_actor(each["name"], namespace=NAMESPACE)
    return found


def run_names() -> list[str]:
    """All runs of the cluster that have an actor or a placement group."""
    names = {each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE}
    names |= {str(facts["name"]) for facts in placement_group_table().values() if facts["state"] != "REMOVED"}
    return sorted({name.partition("/")[0] for name in names if "/" in name})


def call(method: Any, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """Call a method of an actor and wait for the answer. Raises RayError."""
    return ray.get(method.remote(*arguments), timeout=timeout_s)


def try_call(method: Any, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """The answer of an actor; None if it has none, because it is dead or out of reach."""
    try:
        return call(method, *arguments, timeout_s=timeout_s)
    except RayError:
        return None


def explain_death(error: BaseException) -> str:
    """Why an actor is dead, in one line, with the next step where there is one."""
    text = str(error)
    if "No module named 'ft_rendezvous'" in text:
        return "ft-rendezvous is not installed there: install it on all machines, or add it to --runtime-env"
    causes = [
        line.strip() for line in text.splitlines() if line.strip().startswith(("cause:", "The actor", "RuntimeEnv"))
    ]
    return causes[-1] if causes else _first_line(error)


def remove_run(name: str) -> None:
    """Kill all actors of a run and give back its resources. A second call does no harm."""
    for actor in find_actors(name).values():
        with contextlib.suppress(RayError, ValueError):
            ray.kill(actor)
    for group in groups_of(name).values():
        with contextlib.suppress(RayError):
            remove_placement_group(_handle(group.id))
