"""What the coordinator decided, told as typed entries to whoever listens.

The coordinator writes entries and knows no listener; `log_entry` is the one that logs. Entries are data that can be
written down: what is known of a run, live or afterwards, is a fold over them (`state`) and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import AnyWhy, Outcome, Placement, Verdict, VerdictKind
from ft_rendezvous.core.roster import FenceCause
from ft_rendezvous.protocol.codec import BadRecord
from ft_rendezvous.text import NAMED, count

log = logging.getLogger("ft_rendezvous")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """Base of all entries; the name of its class is an entry's tag."""


# --- the run ----------------------------------------------------------------------------------------


class RunBegan(_Entry, frozen=True, kw_only=True):
    """A store is there, and its coordinator with it."""

    run_id: str
    epoch: str
    settings: dict[str, str]
    versions: dict[str, str]
    host: str
    """The machine and the process of the store: `name pid 123`."""


class Looked(_Entry, frozen=True, kw_only=True):
    """The coordinator is alive, and this is what it saw of the leases; told once per lease."""

    cycle_id: int
    live: int
    oldest_s: float
    """How long ago the node that was silent for longest was heard of."""
    operations: int
    """Store operations of the coordinator so far."""


class RecordRefused(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    record: BadRecord


class RunEnded(_Entry, frozen=True, kw_only=True):
    verdict: Verdict


class HostLeft(_Entry, frozen=True, kw_only=True):
    """The store goes and the run has no verdict: somebody ended its host."""

    @property
    def verdict(self) -> Verdict:
        """What that amounts to."""
        return Verdict(VerdictKind.CANCELLED, "its store host was ended", is_retryable=True)


# --- cycles -----------------------------------------------------------------------------------------


class CycleOpened(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    why: AnyWhy
    roles: dict[Role, Role]
    """What every live node is from now on, by what it was; a role that is not listed stays."""


class CauseCorrected(_Entry, frozen=True, kw_only=True):
    """A cycle opened for what was known then; its true cause is known now."""

    cycle_id: int
    why: AnyWhy


class CycleWaits(_Entry, frozen=True, kw_only=True):
    """The reason to wait has changed."""

    cycle_id: int
    reason: str


class CycleSealed(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    placement: Placement
    roles: dict[Role, Role]
    """What every live node without a rank is from now on, by what it was; a role that is not listed stays."""
    waited_s: float
    master: str


class CyclePlaced(_Entry, frozen=True, kw_only=True):
    """What the placement changed, why, and what the spares cover now."""

    cycle_id: int
    kept: int
    """Nodes with the rank that they had in the last world."""
    moved: int
    """Nodes of the last world with another rank."""
    new: int
    benched: int
    """Nodes of the last world that are here and have no rank any more."""
    effect: str
    """What the spares cover now, and who has which rank for what reason."""

    @property
    def counts(self) -> str:
        """For the log, with stable keys."""
        return f"kept={self.kept} moved={self.moved} new={self.new} benched={self.benched}"

    def __str__(self) -> str:
        """For people, in one sentence."""
        counts = (
            (self.kept, "keeps its rank", "keep their ranks"),
            (self.moved, "has another rank", "have other ranks"),
            (self.new, "is new", "are new"),
            (self.benched, "is a spare now", "are spares now"),
        )
        parts = [f"{count(number, 'node')} {one if number == 1 else many}" for number, one, many in counts if number]
        return f"{', '.join(parts)}; {self.effect}"


class CycleCalled(_Entry, frozen=True, kw_only=True):
    """The next cycle opens at a checkpoint; these nodes, if any, are asked to give up their places."""

    cycle_id: int
    incarnations: tuple[str, ...]
    roles: tuple[Role, ...]
    """What these nodes are now: a node that had arrived does not count as arrived any more."""
    nodes: tuple[str, ...]
    reason: str


class CycleSettled(_Entry, frozen=True, kw_only=True):
    """Why a world ended is known as well as it will be."""

    cycle_id: int
    failures: int
    first: FailureNote | None
    """None if nobody is charged."""


# --- nodes ------------------------------------------------------------------------------------------


class NodeJoined(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    incarnation: str
    node: str
    is_spare: bool
    addr: str
    pid: int
    infra_rank: int | None
    domain: str | None
    unit: str | None
    worker_role: str | None
    workers: int | None
    """How many it starts."""


class NodesArrived(_Entry, frozen=True, kw_only=True):
    """Nodes that can be placed in this cycle; those of one look together."""

    cycle_id: int
    incarnations: tuple[str, ...]


class NodesSilent(_Entry, frozen=True, kw_only=True):
    """Nodes of which half a lease has heard nothing, and for how many seconds; the others' half may bring a beat."""

    cycle_id: int
    silent_s: dict[str, float]


class NodesHeard(_Entry, frozen=True, kw_only=True):
    """Nodes that were silent and beat again."""

    cycle_id: int
    incarnations: tuple[str, ...]


class NodeFenced(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    incarnation: str
    node: str
    cause: FenceCause
    reason: str
    silent_s: float
    """How long nothing was heard of it."""


class NodeFinished(_Entry, frozen=True, kw_only=True):
    """Its workers ended well; it waits in the exit barrier."""

    cycle_id: int
    incarnation: str
    node: str


class NodeWent(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    incarnation: str
    node: str
    role: Role
    """What it was in the end."""
    outcome: Outcome
    reason: str


class NodeUnhealthy(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    incarnation: str
    node: str
    reason: str


class WorkersEnded(_Entry, frozen=True, kw_only=True):
    """A node says that its workers failed."""

    failure: FailureNote


Entry = (
    RunBegan
    | Looked
    | RecordRefused
    | RunEnded
    | HostLeft
    | CycleOpened
    | CauseCorrected
    | CycleWaits
    | CycleSealed
    | CyclePlaced
    | CycleCalled
    | CycleSettled
    | NodeJoined
    | NodesArrived
    | NodesSilent
    | NodesHeard
    | NodeFenced
    | NodeFinished
    | NodeWent
    | NodeUnhealthy
    | WorkersEnded
)
Journal = Callable[[Entry], None]


def tell_all(*journals: Journal) -> Journal:
    """A journal that passes every entry on to several."""

    def tell(entry: Entry) -> None:
        for journal in journals:
            journal(entry)

    return tell


def log_entry(entry: Entry) -> None:
    """One line per entry; arrivals and departures only at DEBUG, so that a cycle takes under ten lines."""
    match entry:
        case RunBegan() | Looked() | NodesHeard() | NodeFinished() | HostLeft():
            pass  # Told elsewhere, or of no interest as long as all is well.
        case NodesArrived():
            log.debug("arrived cycle=%d nodes=%d", entry.cycle_id, len(entry.incarnations))
        case NodesSilent():
            log.debug("silent cycle=%d nodes=%d", entry.cycle_id, len(entry.silent_s))
        case CycleOpened():
            log.info("opened cycle=%d because %s", entry.cycle_id, entry.why)
        case CauseCorrected():
            log.info("corrected cycle=%d: it opened because %s", entry.cycle_id, entry.why)
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
            log.info("placed cycle=%d %s; %s", entry.cycle_id, entry.counts, entry.effect)
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
