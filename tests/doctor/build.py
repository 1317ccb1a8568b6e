"""Facts of nodes that are well, to be spoiled one at a time."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.doctor.facts import (
    Attempt,
    Clients,
    EndpointFacts,
    EndpointState,
    LifelinePort,
    Lookup,
    NodeFacts,
    Route,
    Software,
    Step,
    Torch,
)
from ft_rendezvous.doctor.findings import Examination, Finding
from ft_rendezvous.doctor.judging import judge

TORCH = Torch(version="2.13.0+cpu", import_s=2.0, store_s=0.01)
SOFTWARE = Software(
    python="3.11.7",
    executable="/env/bin/python",
    ft_rendezvous="0.1.0",
    is_registered=True,
    torchrun="/env/bin/torchrun",
    torch=TORCH,
)


def lookup(of: str, seconds: float = 0.001, *found: str, **more: Any) -> Lookup:
    return Lookup(of=of, seconds=seconds, found=found or ("10.0.0.1",), **more)


def node(task: int = 0, **changes: Any) -> NodeFacts:
    """Node n<task + 1> of a cluster in which n1 is the endpoint."""
    address = f"10.0.0.{task + 1}"
    facts = NodeFacts(
        task=task,
        host=f"n{task + 1}",
        machine=f"machine {task + 1}",
        pid=1000 + task,
        infra_rank=task,
        settings={"nnodes": "4:6"},
        is_host=task == 0,
        endpoint=lookup("n1"),
        own_name=lookup(f"n{task + 1}", 0.001, address),
        route=Route(address=address, is_here=task == 0, is_loopback=False, interface="eth0"),
        reverse=(lookup(address, 0.0002, f"n{task + 1}"), lookup(f"::ffff:{address}", 0.0003, f"n{task + 1}")),
        files_soft=1024,
        files_hard=1 << 20,
        outgoing_ports=(32768, 60999),
        software=SOFTWARE,
    )
    return replace(facts, **changes)


def with_torch(task: int = 0, **changes: Any) -> NodeFacts:
    return node(task, software=replace(SOFTWARE, torch=replace(TORCH, **changes)))


def in_step(facts: NodeFacts, tasks: int, **flags: str) -> NodeFacts:
    hosts = tuple(f"n{number + 1}" for number in range(tasks))
    step = Step(job_id="7", step_id="0", task=facts.task, tasks=tasks, hosts=hosts, flags=flags)
    return replace(facts, step=step)


def examination(*nodes: NodeFacts, **changes: Any) -> Examination:
    """All is well: the port is free, and every node reaches it and the port of the lifelines."""
    nodes = nodes or (node(),)
    known: dict[str, Any] = {
        "endpoint_name": "n1:29400",
        "port": 29400,
        "nodes": nodes,
        "expected": len(nodes),
        "waited_s": 60.0,
        "endpoint": EndpointFacts(state=EndpointState.HELD, lifelines=LifelinePort(port=40000)),
        "attempts": {each.task: (Attempt(address="10.0.0.1", seconds=0.001),) for each in nodes},
        "lifeline_attempts": {each.task: (Attempt(address="10.0.0.1", seconds=0.001),) for each in nodes},
        "clients": Clients(lookups=tuple(last for each in nodes for last in each.reverse[-1:])),
        "rules": PlacementRules(min_nodes=max(1, len(nodes) - 2), max_nodes=len(nodes)),
        "are_sizes_given": True,
        "files_wanted": 3 * len(nodes) + 256,
    }
    return Examination(**{**known, **changes})


def of_check(check: str, seen: Examination) -> list[Finding]:
    return [finding for finding in judge(seen) if finding.check == check]


def finding_of(check: str, seen: Examination) -> tuple[str, str, tuple[str, ...]]:
    """Status, fact and nodes of the one finding of a check."""
    (finding,) = of_check(check, seen)
    return str(finding.status), finding.fact, finding.nodes
