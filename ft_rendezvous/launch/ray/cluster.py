"""Everything that is asked of Ray: connecting, machines, placement groups and actors. Decides nothing.

Every call that Ray could leave without an answer has a timeout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray.actors import NodeActor, RunActor
from ft_rendezvous.launch.ray.head_watch import probe_head
from ft_rendezvous.launch.ray.request import RayNodeFacts

try:
    import ray
    from ray._private import services
    from ray.exceptions import RayError
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ConfigError("Ray is not installed: pip install 'ft-rendezvous[ray]'") from error

NAMESPACE = "ftr"
"""All actors are in one namespace of Ray, so that any driver finds them."""
GROUPS = "ftr"
"""How the name of each placement group begins. Ray lists those of all namespaces together."""
START_TIMEOUT_S = 600.0
"""How long the first actor may take to start: Ray may install packages for it."""
CALL_TIMEOUT_S = 30.0
DISCONNECT_TIMEOUT_S = 3.0
CONCURRENT_CALLS = 8
"""Calls that one actor answers at the same time."""
WAITING, WAITING_CALLS = "waiting", 4
"""Calls that wait for the end of a process have threads of their own: they take none from the others, however many
drivers have died and left theirs behind."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HEAD_RESOURCE = "node:__internal_head__"


# --- connecting ---------------------------------------------------------------------------------------


def find_head(address: str) -> str:
    """The HOST:PORT at which the head of the cluster answers. Raises ConfigError.

    Ray itself tries for minutes to reach a head that is not there.
    """
    head = _dialed(address or os.environ.get("RAY_ADDRESS", "") or "auto")
    if ray.is_initialized():
        connected_to: str = ray.get_runtime_context().gcs_address
        if address and head != connected_to:
            raise ConfigError(
                f"this process is connected to {connected_to} already, and not to {address}: call ray.shutdown() "
                "before, or leave out the address"
            )
        return connected_to
    problem = probe_head(head)
    if problem:
        raise ConfigError(
            f"no Ray cluster answers at {head}: {problem}: is it up, and is --address the one that `ray start` printed?"
        )
    return head


def _dialed(address: str) -> str:
    """The address as Ray itself dials it."""
    if address.startswith("ray://"):
        raise ConfigError(f"{address} is Ray Client: start the launcher inside, with `ray job submit -- ftr ray ...`")
    if address == "auto":
        try:
            address = services.canonicalize_bootstrap_address(address) or ""
        except ConnectionError:
            address = ""
        if not address:
            raise ConfigError("no Ray cluster was found here: start one with `ray start --head`, or give --address")
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        raise ConfigError(f"--address {address} is not HOST:PORT, for example 10.0.0.1:6379")
    if host.strip("[]") in LOOPBACK_NAMES:
        host = ray.util.get_node_ip_address()
    return f"{host}:{port}"


@contextlib.contextmanager
def connected(head: str, environment: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Connected to a cluster; all actors have this runtime environment. Raises ConfigError if that cannot be.

    A process that has called `ray.init` keeps its connection. Then `start_node_actor` and `start_run_actor` must be
    given the environment.
    """
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(
            address=head,
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
        disconnect()


def disconnect() -> None:
    """Leave the cluster. If a machine was lost, Ray waits about 20 s for it: after a moment that goes on alone."""
    leaving = threading.Thread(target=ray.shutdown, name="ft-ray-leaves", daemon=True)
    leaving.start()
    leaving.join(DISCONNECT_TIMEOUT_S)


def own_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime environment for actors of a process that has called `ray.init`: the process's own and this one.

    Raises ConfigError for a directory of this machine: Ray takes one in `ray.init` only.
    """
    for key in ("working_dir", "py_modules"):
        places = environment.get(key, [])
        for place in [places] if isinstance(places, str) else places:
            if "://" not in str(place):
                raise ConfigError(
                    f"this process has called ray.init, and after that Ray takes no {key} {place} of this machine: "
                    "pass it to ray.init(runtime_env=...), or do not call ray.init before run()"
                )
    return {**dict(ray.get_runtime_context().runtime_env), **environment}


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


def request_seats(name: str, seats: Sequence[BundleSeat], resources: Mapping[str, float], strategy: str) -> str:
    """Ask for a placement group for these seats, all or nothing. Returns its id, at once."""
    bundles = [dict(resources) for _ in seats]
    group = placement_group(bundles, strategy=strategy, name=f"{GROUPS}/{name}/{seats[0].group}", lifetime="detached")
    return str(group.id.hex())


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A placement group that Ray knows."""

    id: str
    size: int
    is_placed: bool
    machines: Mapping[int, str]
    """The machine of each bundle that has one."""


def groups_of(name: str) -> dict[str, GroupFacts]:
    """All placement groups of a run, by their names without the run's.

    Reads Ray's whole table, which keeps groups that were removed. `look_at_groups` reads those with known ids only.
    """
    return {group: facts for (run, group), facts in _all_groups().items() if run == name}


def look_at_groups(ids: Mapping[str, str]) -> dict[str, GroupFacts]:
    """These placement groups, by the names that they have here. One that was removed is not there."""
    tables = {group: placement_group_table(_handle(id_)) for group, id_ in ids.items()}
    return {group: _group_facts(ids[group], facts) for group, facts in tables.items() if _is_there(facts)}


def _all_groups() -> dict[tuple[str, str], GroupFacts]:
    """All placement groups of all runs. Their names begin with a word of ours: other programs name groups, too."""
    found: dict[tuple[str, str], GroupFacts] = {}
    for id_, facts in placement_group_table().items():
        prefix, _, rest = str(facts["name"]).partition("/")
        run, _, group = rest.partition("/")
        if prefix == GROUPS and group and _is_there(facts):
            found[run, group] = _group_facts(id_, facts)
    return found


def _is_there(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("state", "REMOVED") != "REMOVED")


def _group_facts(id_: str, facts: Mapping[str, Any]) -> GroupFacts:
    placed = {int(index): str(machine) for index, machine in facts["bundles_to_node_id"].items() if machine}
    # If a machine is lost, the other bundles of its group keep their places.
    is_placed = facts["state"] in ("CREATED", "RESCHEDULING")
    return GroupFacts(id_, len(facts["bundles"]), is_placed, placed)


def _handle(id_: str) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(id_)))


# --- actors -------------------------------------------------------------------------------------------


def node_name(name: str, node: int, start: int) -> str:
    return f"{name}/node-{node}.{start}"


def start_node_actor(
    name: str, group: GroupFacts, bundle: int, resources: Mapping[str, float], environment: Mapping[str, Any]
) -> Any:
    """Ask for an actor with this name in a bundle. Ray says later whether it could start."""
    others = {key: value for key, value in resources.items() if key not in ("CPU", "GPU")}
    options = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": others,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(_handle(group.id), bundle),
    }
    return _actor_class(NodeActor).options(**_actor_options(name, environment), **options).remote()


def start_run_actor(
    name: str, manifest: Mapping[str, Any], driver: str, machine: str, environment: Mapping[str, Any]
) -> Any:
    """Start the actor of the run on this machine. Raises ConfigError if a run has this name, or RayError."""
    options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=False)}
    options |= _actor_options(f"{name}/run", environment)
    try:
        return _actor_class(RunActor).options(**options).remote(dict(manifest), driver)
    except ValueError as error:
        raise ConfigError(f"a run with the name {name} has just been started: choose another --name") from error


def _actor_class(kind: type) -> Any:
    options: dict[str, Any] = {"concurrency_groups": {WAITING: WAITING_CALLS}, "max_concurrency": CONCURRENT_CALLS}
    return ray.remote(**options)(kind)


def _actor_options(name: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
    return options | ({"runtime_env": dict(environment)} if environment else {})


def ask_to_wait(method: Any) -> Any:
    """Ask an actor something that it answers late. It has few threads for such questions, and others for the rest."""
    return method.options(concurrency_group=WAITING).remote()


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
    return sorted({name.partition("/")[0] for name in names if "/" in name} | {run for run, _ in _all_groups()})


def call(method: Any, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """Call a method of an actor and wait for the answer. Raises RayError."""
    return ray.get(method.remote(*arguments), timeout=timeout_s)


def try_call(method: Any, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """The answer of an actor; None if it has none, because it is dead or out of reach."""
    try:
        return call(method, *arguments, timeout_s=timeout_s)
    except RayError:
        return None


def try_call_all(methods: Sequence[Any], timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
    """The answers of many actors, asked at the same time; None for each that has none in time."""
    refs = [method.remote() for method in methods]
    ready = set(ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[0]) if refs else set()
    return [_take(ref) if ref in ready else None for ref in refs]


def _take(ref: Any) -> Any:
    try:
        return ray.get(ref)
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
