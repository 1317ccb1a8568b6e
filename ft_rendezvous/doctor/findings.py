"""What the doctor says: findings, and all it knows when it judges. Pure data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.doctor.facts import Attempt, Clients, Controller, Endpoint, Hello, NodeFacts


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Field names and check names are stable."""

    check: str
    status: Status
    fact: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()
    """Whom it is about; nobody in particular if empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that is known, for the checks to judge."""

    endpoint_name: str
    """HOST:PORT."""
    port: int
    nodes: Sequence[NodeFacts]
    """By task."""
    expected: int
    """How many tasks there are."""
    waited_s: float
    endpoint: Endpoint
    looked: int = 0
    """The task that looked at the endpoint."""
    attempts: Mapping[int, Sequence[Attempt]] = field(default_factory=dict)
    """By task; empty where the endpoint was left alone."""
    clients: Clients | None = None
    """As the endpoint's machine sees those who come to it."""
    offsets_s: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """How far each task's clock is before the first one's, and how uncertain that is."""
    misfits: Sequence[Hello] = ()
    """Nodes with another version of the doctor."""
    lost: Sequence[int] = ()
    """Tasks that reported and then were not heard of again."""
    controller: Controller | None = None
    run_id: str = ""
    """As given with --rdzv-id."""
    run_differs: Sequence[str] = ()
    """What the live run's settings and the given ones disagree on."""
    remarks: Sequence[tuple[str, str]] = ()
    """What in the settings has no effect, and what to do about it."""
    rules: PlacementRules | None = None
    """None if the settings cannot work."""
    are_sizes_given: bool = False
    """Whether --nnodes was."""
    lease_s: float = 5.0
    files_wanted: int = 0
    """How many files the store host may have open."""
    connections_per_node: int = 3

    def names(self, nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
        """How nodes are called: by their hosts, and by their infra ranks too where a host has several."""
        on_host = Counter(node.host for node in self.nodes)
        return tuple(f"{node.host}/{rank_of(node)}" if on_host[node.host] > 1 else node.host for node in nodes)

    @property
    def hosts(self) -> list[NodeFacts]:
        """The nodes that would host the store."""
        return [node for node in self.nodes if node.is_host]

    @property
    def missing(self) -> list[int]:
        here = {node.task for node in self.nodes} | {hello.task for hello in self.misfits}
        return [task for task in range(self.expected) if task not in here]


def rank_of(node: NodeFacts) -> int:
    return node.task if node.infra_rank is None else node.infra_rank


def worst(findings: Sequence[Finding]) -> Status:
    found = {finding.status for finding in findings}
    return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)
