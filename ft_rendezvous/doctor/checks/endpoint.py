"""Checks of the endpoint: what is there, which nodes reach it, from which address, and the limits of its host."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ft_rendezvous.core.hosting import CLEAR_REMEDY
from ft_rendezvous.doctor.facts import Attempt, EndpointState, NodeFacts, RunningRun
from ft_rendezvous.doctor.findings import Examination, Finding, Status
from ft_rendezvous.text import count, listing

ANOTHER_PORT = "choose another port in --endpoint, and in --rdzv-endpoint"


# --- what is there ------------------------------------------------------------------------------------


def judge_endpoint(seen: Examination) -> list[Finding]:
    """Whether a run could use the endpoint, and every node would reach it."""
    judge: Mapping[EndpointState, Callable[[Examination], tuple[Status, str, str]]] = {
        EndpointState.HELD: _judge_held,
        EndpointState.RUN: _judge_run,
        EndpointState.OTHER_STORE: _judge_stranger,
        EndpointState.STRANGER: _judge_stranger,
        EndpointState.TAKEN: _judge_taken,
        EndpointState.FORBIDDEN: _judge_forbidden,
        EndpointState.NOTHING: _judge_nothing,
        EndpointState.NO_ANSWER: _judge_no_answer,
        EndpointState.UNKNOWN_HOST: _judge_unknown_host,
    }
    status, fact, remedy = judge[seen.endpoint.state](seen)
    looked = seen.names(node for node in seen.nodes if node.task == seen.looked)
    return [
        Finding(check="endpoint", status=status, fact=fact, remedy=remedy, nodes=looked),
        *_judge_attempts(seen),
    ]


def _judge_held(seen: Examination) -> tuple[Status, str, str]:
    return Status.PASS, f"port {seen.port} is free there: a run can use {seen.endpoint_name}", ""


def _judge_run(seen: Examination) -> tuple[Status, str, str]:
    run = seen.endpoint.run
    assert run is not None, "a run was found"
    where = f"run {run.run_id!r} is at {seen.endpoint_name}"
    if run.verdict:
        fact = f"{where}; it has ended ({run.verdict}) and its store will end soon"
        return Status.WARN, fact, f"wait until it is gone, or {ANOTHER_PORT}"
    fact = f"{where}, {_describe_cycle(run)}" + (
        "" if seen.attempts else "; the doctor looked at it once and left it alone"
    )
    if not seen.run_id:
        remedy = f"a new run needs a port of its own: {ANOTHER_PORT}; for a node of this run, pass --rdzv-id"
        return Status.WARN, fact, remedy
    if run.run_id != seen.run_id:
        return Status.FAIL, f"{fact}; it is not {seen.run_id!r}", ANOTHER_PORT
    if seen.run_differs:
        differs = listing(seen.run_differs, 3)
        return Status.FAIL, f"{fact}; its settings differ: {differs}", "use the same --nnodes and --rdzv-conf"
    return Status.PASS, fact, ""


def _describe_cycle(run: RunningRun) -> str:
    return f"in cycle {run.cycle_id}" if run.is_sealed else f"waiting for nodes in cycle {run.cycle_id}"


def _judge_stranger(seen: Examination) -> tuple[Status, str, str]:
    return Status.FAIL, f"{seen.endpoint_name} is taken: {seen.endpoint.detail}", ANOTHER_PORT


def _judge_taken(seen: Examination) -> tuple[Status, str, str]:
    fact = f"port {seen.port} is taken, but nothing answers at {seen.endpoint_name}"
    return Status.FAIL, fact, f"{ANOTHER_PORT}, or find the process that has it: ss -ltnp 'sport = :{seen.port}'"


def _judge_forbidden(seen: Examination) -> tuple[Status, str, str]:
    return Status.FAIL, f"the system does not allow to listen on port {seen.port}: {seen.endpoint.detail}", ANOTHER_PORT


def _judge_nothing(seen: Examination) -> tuple[Status, str, str]:
    sharer = next((node for node in seen.nodes if node.shares_endpoint and not node.is_host), None)
    if sharer is not None:
        fact = f"nothing listens at {seen.endpoint_name} yet, and no node here would host: {sharer.hosting_reason}"
        return Status.WARN, fact, "start the node that hosts and run ftr doctor again, or set is_host=true on one node"
    who = "this is not its machine" if seen.expected == 1 else "none of these nodes is its machine"
    remedy = "start ftr serve there and run ftr doctor again, or name one of the nodes in --endpoint"
    return Status.WARN, f"nothing listens at {seen.endpoint_name} yet, and {who}", remedy


def _judge_no_answer(seen: Examination) -> tuple[Status, str, str]:
    remedy = "check that the host is up, that its name is right, and that no firewall drops packets to that port"
    return Status.FAIL, f"{seen.endpoint_name}: {seen.endpoint.detail}", remedy


def _judge_unknown_host(seen: Examination) -> tuple[Status, str, str]:
    fact = f"{seen.endpoint_name}: {seen.endpoint.detail}; a node would wait for the name until join_timeout"
    remedy = "check the name, and what getent ahosts NAME prints there; in Kubernetes, see ftr docs kubernetes"
    return Status.FAIL, fact, remedy


# --- which nodes reach it ---------------------------------------------------------------------------------


def _judge_attempts(seen: Examination) -> list[Finding]:
    cut_off: dict[str, list[NodeFacts]] = defaultdict(list)
    reached = []
    for node in seen.nodes:
        attempts = seen.attempts.get(node.task, ())
        if any(not attempt.error for attempt in attempts):
            reached.append(node)
        elif attempts:
            cut_off[attempts[0].error].append(node)
    found = [
        Finding(
            check="reach",
            status=Status.FAIL,
            fact=f"{seen.endpoint_name} cannot be reached: {error}",
            remedy="open the port between the nodes, and check that the name means the same machine there",
            nodes=seen.names(nodes),
        )
        for error, nodes in cut_off.items()
    ]
    if reached and seen.expected > 1:
        fact = f"{seen.endpoint_name} is reached"
        found.append(Finding(check="reach", status=Status.PASS, fact=fact, nodes=seen.names(reached)))
    return found


def judge_families(seen: Examination) -> list[Finding]:
    """IPv4 and IPv6: a name with both is tried with both. A broken address costs time at every connection."""
    broken: dict[str, list[NodeFacts]] = defaultdict(list)
    fine: dict[str, list[NodeFacts]] = defaultdict(list)
    # Of the machines of a shared name, all but the store host refuse.
    is_shared = any(node.shares_endpoint for node in seen.nodes)
    for node in seen.nodes:
        attempts = seen.attempts.get(node.task, ())
        dead = [attempt for attempt in attempts if attempt.error]
        if dead and len(dead) < len(attempts) and not is_shared:
            broken[_describe_broken(attempts)].append(node)
        elif node.endpoint.found:
            fine[" and ".join(_families(node.endpoint.found))].append(node)
    found = [
        Finding(
            check="families",
            status=Status.WARN,
            fact=fact,
            remedy="every connection tries the other address too: let the name have one address that works, or use "
            "that address as the endpoint",
            nodes=seen.names(nodes),
        )
        for fact, nodes in broken.items()
    ]
    for families, nodes in fine.items():
        fact = f"the endpoint has {families}{'' if seen.attempts else ' (not tried)'}"
        found.append(Finding(check="families", status=Status.PASS, fact=fact, nodes=seen.names(nodes)))
    return found


def _describe_broken(attempts: Sequence[Attempt]) -> str:
    dead = listing([f"{attempt.address} does not work ({attempt.error})" for attempt in attempts if attempt.error], 3)
    works = listing([attempt.address for attempt in attempts if not attempt.error], 3)
    return f"of the endpoint's addresses {dead}, {works} does"


def _families(addresses: Sequence[str]) -> list[str]:
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in addresses]
    versions = {4 if getattr(address, "ipv4_mapped", None) else address.version for address in found}
    return [f"IPv{version}" for version in sorted(versions)]


# --- from which address -------------------------------------------------------------------------------------


def judge_address(seen: Examination) -> list[Finding]:
    """The route of every node to the endpoint: it must leave the machine, unless the endpoint is on that machine."""
    machines = {node.machine for node in seen.nodes}
    if len({node.machine for node in seen.hosts}) > 1:
        return [
            Finding(
                check="address",
                status=Status.FAIL,
                fact=f"{count(len(seen.hosts), 'node')} on different machines each believe that the endpoint is "
                "theirs: each would host a run",
                remedy="use a name that means one machine everywhere: not localhost, and no name that /etc/hosts maps "
                "to 127.0.0.1 or 127.0.1.1",
                nodes=seen.names(seen.hosts),
            )
        ]
    found = []
    unclear = [node for node in seen.nodes if node.is_hosting_unclear]
    if unclear:
        found.append(
            Finding(
                check="address",
                status=Status.FAIL,
                fact=unclear[0].hosting_reason,
                remedy=CLEAR_REMEDY,
                nodes=seen.names(unclear),
            )
        )
    nowhere = [node for node in seen.nodes if node.route is None and node.endpoint.found]
    if nowhere:
        found.append(
            Finding(
                check="address",
                status=Status.FAIL,
                fact="there is no route to the endpoint",
                remedy="run ip route get ADDRESS on the node",
                nodes=seen.names(nowhere),
            )
        )
    routes: dict[str, list[NodeFacts]] = defaultdict(list)
    inside: list[NodeFacts] = []
    for node in seen.nodes:
        if node.route is None or node.is_hosting_unclear:
            continue
        if node.route.is_loopback and not node.is_host and len(machines) > 1:
            inside.append(node)
        else:
            routes[_describe_route(node, len(seen.nodes) > 1)].append(node)
    if inside:
        found.append(
            Finding(
                check="address",
                status=Status.FAIL,
                fact="the route to the endpoint is loopback, but the endpoint is on another machine",
                remedy="check the endpoint's name in /etc/hosts there",
                nodes=seen.names(inside),
            )
        )
    found += [
        Finding(check="address", status=Status.PASS, fact=route, nodes=seen.names(nodes))
        for route, nodes in routes.items()
    ]
    return found


def _describe_route(node: NodeFacts, is_one_of_many: bool) -> str:
    """The route in words; the same words for nodes with the same kind of route."""
    assert node.route is not None
    interface = f" through {node.route.interface}" if node.route.interface else ""
    if node.shares_endpoint:
        what = "would host" if node.is_host else "would not host"
        machines = f"the endpoint has {len(node.endpoint.found)} addresses, of this machine and of others"
        return machines if is_one_of_many else f"{machines}; this node {what}: {node.hosting_reason}"
    if node.route.is_here:
        return f"the endpoint is this machine{'' if is_one_of_many else f' ({node.route.address})'}{interface}"
    address = "" if is_one_of_many else f" from {node.route.address}"
    return f"the endpoint is reached{address}{interface or ' through an unknown interface'}"


# --- files and ports --------------------------------------------------------------------------------------


def judge_files(seen: Examination) -> list[Finding]:
    """The store needs two connections per node, and a third one while a node connects. Limits are those of a process.

    The process that holds the lifelines needs one per node: it has enough where the store has.
    """
    if not seen.hosts or not seen.files_wanted:
        return []
    short = [node for node in seen.hosts if 0 <= node.files_hard < seen.files_wanted]
    if short:
        return [
            Finding(
                check="files",
                status=Status.FAIL,
                fact=_describe_files(seen, short[0]),
                remedy="raise the hard limit there (ulimit -Hn; LimitNOFILE= of slurmd), or run ftr serve where it is "
                "higher",
                nodes=seen.names(short),
            )
        ]
    least = min(seen.hosts, key=lambda node: node.files_hard)
    return [Finding(check="files", status=Status.PASS, fact=_describe_files(seen, least), nodes=seen.names(seen.hosts))]


def _describe_files(seen: Examination, node: NodeFacts) -> str:
    allowed = "any number of" if node.files_hard < 0 else f"{node.files_hard:,}"
    beside = seen.lifeline_files_wanted
    lifelines = f", and {beside:,} in the process that holds the lifelines" if beside else ""
    return f"a process on the store host may open {allowed} files; the store needs {seen.files_wanted:,}{lifelines}"


def judge_port(seen: Examination) -> list[Finding]:
    """The system may give a port of this range to any outgoing connection. Then the port is not free."""
    exposed = [
        node
        for node in seen.hosts
        if node.outgoing_ports is not None and node.outgoing_ports[0] <= seen.port <= node.outgoing_ports[1]
    ]
    if not exposed:
        return []
    first, last = exposed[0].outgoing_ports or (0, 0)
    return [
        Finding(
            check="port",
            status=Status.WARN,
            fact=f"port {seen.port} is one that the system gives to outgoing connections ({first} to {last}): it "
            "may be taken when a run starts",
            remedy=f"choose one below {first}, such as 29400",
            nodes=seen.names(exposed),
        )
    ]
