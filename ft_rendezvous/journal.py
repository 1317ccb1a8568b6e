"""What the coordinator decided, told as typed entries to whoever listens.

The coordinator writes entries and knows no listener; `log_entry` is the one that logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.explaining import Summary
from ft_rendezvous.core.model import NAMED, AnyWhy, Placement, Verdict
from ft_rendezvous.core.sealing import WaitReason
from ft_rendezvous.wire import BadRecord

log = logging.getLogger("ft_rendezvous")


@dataclass(frozen=True, slots=True)
class CycleOpened:
    cycle_id: int
    why: AnyWhy


@dataclass(frozen=True, slots=True)
class CycleWaits:
    """The reason to wait has changed."""

    cycle_id: int
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class CycleSealed:
    cycle_id: int
    placement: Placement
    waited_s: float
    master: str


@dataclass(frozen=True, slots=True)
class CyclePlaced:
    """Who has which rank now, and why."""

    cycle_id: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class NodeJoined:
    cycle_id: int
    node: str
    is_spare: bool


@dataclass(frozen=True, slots=True)
class NodeFenced:
    cycle_id: int
    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeWent:
    cycle_id: int
    node: str
    outcome: str


@dataclass(frozen=True, slots=True)
class NodeUnhealthy:
    cycle_id: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class CycleCalled:
    """The next cycle opens at a checkpoint; these nodes, if any, are asked to give up their places."""

    cycle_id: int
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersEnded:
    """A node says that its workers failed."""

    failure: FailureNote


@dataclass(frozen=True, slots=True)
class CycleSettled:
    """Why a world ended is known as well as it will be."""

    cycle_id: int
    failures: int
    first: FailureNote | None
    """None if nobody is charged."""


@dataclass(frozen=True, slots=True)
class RecordRefused:
    cycle_id: int
    record: BadRecord


@dataclass(frozen=True, slots=True)
class RunEnded:
    verdict: Verdict


Entry = (
    CycleOpened
    | CycleWaits
    | CycleSealed
    | CyclePlaced
    | NodeJoined
    | NodeFenced
    | NodeWent
    | NodeUnhealthy
    | CycleCalled
    | WorkersEnded
    | CycleSettled
    | RecordRefused
    | RunEnded
)
Journal = Callable[[Entry], None]


def log_entry(entry: Entry) -> None:
    """One line per entry; arrivals and departures only at DEBUG, so that a cycle takes under ten lines."""
    match entry:
        case CycleOpened():
            log.info("opened cycle=%d because %s", entry.cycle_id, entry.why)
        case CycleWaits():
            log.info("waiting cycle=%d: %s", entry.cycle_id, entry.reason)
        case CycleSealed():
            log.info(
                "sealed cycle=%d active=%d standby=%d after_s=%.3f master=%s",
                entry.cycle_id,
                len(entry.placement.ranks),
                len(entry.placement.standbys),
                entry.waited_s,
                entry.master,
            )
        case CyclePlaced():
            log.info("placed cycle=%d %s", entry.cycle_id, entry.summary)
        case NodeJoined():
            log.debug("joined cycle=%d node=%s spare=%s", entry.cycle_id, entry.node, entry.is_spare)
        case NodeFenced():
            log.warning("fenced cycle=%d node=%s: %s", entry.cycle_id, entry.node, entry.reason)
        case NodeWent():
            log.debug("gone cycle=%d node=%s outcome=%s", entry.cycle_id, entry.node, entry.outcome)
        case NodeUnhealthy():
            log.warning("unhealthy cycle=%d node=%s: %s", entry.cycle_id, entry.node, entry.reason)
        case CycleCalled(nodes=()):
            log.info("calling cycle=%d at the next checkpoint: %s", entry.cycle_id + 1, entry.reason)
        case CycleCalled():
            named = ", ".join(entry.nodes[:NAMED])
            log.info("draining cycle=%d nodes=%d: %s: %s", entry.cycle_id, len(entry.nodes), named, entry.reason)
        case WorkersEnded():
            failure = entry.failure
            after = "" if failure.after_s is None else f" after_s={failure.after_s:.3f}"
            log.info("failed cycle=%d rank=%d%s: %s", failure.cycle_id, failure.rank, after, failure)
        case CycleSettled() if entry.first is not None:
            log.info("settled cycle=%d: %d failed, first %s", entry.cycle_id, entry.failures, entry.first)
        case CycleSettled():
            text = "settled cycle=%d: a node was lost or left, or somebody asked; %d failed of that: nobody is charged"
            log.info(text, entry.cycle_id, entry.failures)
        case RecordRefused():
            log.warning(
                "refused a record in cycle=%d: %s: %s",
                entry.cycle_id,
                entry.record.reason,
                entry.record.excerpt,
            )
        case RunEnded():
            log.info("closed verdict=%s", entry.verdict)
