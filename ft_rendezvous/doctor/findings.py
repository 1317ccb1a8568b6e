"""Findings of the doctor, and the facts on which it judges. Pure data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.doctor.facts import Attempt, Clients, Controller, EndpointFacts, Hello, NodeFacts


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
    """The nodes that it is about; empty: no node in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All facts on which the checks judge."""

    endpoint_name: str
    """HOST:PORT."""
    port: int
    nodes: Sequence[NodeFacts]
    """By task."""
    expected: int
    """How many tasks there are."""
    waited_s: float
    endpoint: EndpointFacts
    looked: int = 0
    """The task that looked at the endpoint."""
    attempts: Mapping[int, Sequence[Attempt]] = field(default_factory=dict)
    """By task. Empty if no node tried to reach the endpoint."""
    lifeline_attempts: Mapping[int, Sequence[Attempt]] = field(default_factory=dict)
    """By task. Empty if no node tried to reach the port of the lifelines."""
    clients: Clients | None = None
    """The clients that came to the endpoint, as its machine sees them."""
    offsets_s: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """How far the clock of each task is ahead of the first one's, and how uncertain that is."""
    other_versions: Sequence[Hello] = ()
    """Nodes with another version of the doctor."""
    lost: Sequence[int] = ()
    """Tasks that reported and did not answer later."""
    controller: Controller | None = None
    run_id: str = ""
    """The value of --rdzv-id."""
    run_differs: Sequence[str] = ()
    """Settings in which the live run and the given options differ."""
    remarks: Sequence[tuple[str, str]] = ()
    """Settings without effect, and what to do about them."""
    rules: PlacementRules | None = None
    """None if the settings cannot work."""
    are_sizes_given: bool = False
    """Whether --nnodes was given."""
    lease_s: float = 5.0
    files_wanted: int = 0
    """How many files the store host may have open, in the process of the store."""
    lifeline_files_wanted: int = 0
    """The same, in the process that holds the lifelines; 0: there are none."""
    connections_per_node: int = 3

    def names(self, nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
        """The names of nodes: the host, and also the infra rank if a host has several nodes."""
        on_host = Counter(node.host for node in self.nodes)
        return tuple(f"{node.host}/{rank_of(node)}" if on_host[node.host] > 1 else node.host for node in nodes)

    @property
    def hosts(self) -> list[NodeFacts]:
        """The nodes that would host the store."""
        return [node for node in self.nodes if node.is_host]

    @property
    def missing(self) -> list[int]:
        here = {node.task for node in self.nodes} | {hello.task for hello in self.other_versions}
        return [task for task in range(self.expected) if task not in here]


def rank_of(node: NodeFacts) -> int:
    return node.task if node.infra_rank is None else node.infra_rank


def worst(findings: Sequence[Finding]) -> Status:
    found = {finding.status for finding in findings}
    return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)
