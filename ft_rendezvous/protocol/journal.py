"""What the coordinator decided and saw, as typed entries.

The coordinator passes entries to a journal and does not know who reads them. `log_entry` is the journal that logs.
Entries are plain data. The state of a run, live or afterwards, is a fold over them and nothing else (see `state`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import AnyWhy, Outcome, Placement, Verdict, VerdictKind
from ft_rendezvous.core.update_notes import ReportedUpdate, SummedSeconds, UpdateCount
from ft_rendezvous.protocol.codec import BadRecord
from ft_rendezvous.text import NAMED, count, duration

log = logging.getLogger("ft_rendezvous")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """Base class of all entries. The name of the class is the tag of the entry."""


# --- the run ----------------------------------------------------------------------------------------


class RunBegan(_Entry, frozen=True, kw_only=True):
    """The store and its coordinator have started."""

    run_id: str
    epoch: str
    settings: dict[str, str]
    versions: dict[str, str]
    host: str
    """The machine and the process that host the store: `name pid 123`."""


class ToldProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far the slowest worker of a node is, as its beat told."""

    step: int | None
    age_s: int
    """Seconds since its last progress."""
    rank: int | None = None
    """Its global rank, within its group if the run has groups."""


class Looked(_Entry, frozen=True, kw_only=True):
    """The coordinator is alive and has read the beats. Written once per lease."""

    cycle_id: int
    live: int
    oldest_s: float
    """Seconds since the last beat of the node that was silent for longest."""
    operations: int
    """Number of store operations of the coordinator so far."""
    progress: dict[str, ToldProgress] = {}
    """If hangs are looked for: how far the nodes are that train. Of many nodes, only those that wait for longest."""
    others: ToldProgress | None = None
    """All other nodes that train have come at least so far, and have waited no longer. None: there is no other, or one
    of them does not say how far it is."""
    late_after_s: int | None = None
    """The age of progress at which a rank is late: of the nodes, which may have learned it, the longest."""


class RecordRefused(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    record: BadRecord


class RunEnded(_Entry, frozen=True, kw_only=True):
    verdict: Verdict


class HostLeft(_Entry, frozen=True, kw_only=True):
    """The store host ends before the run has a verdict: a user or the system stopped it."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from it."""
        return Verdict(VerdictKind.CANCELLED, "its store host was ended", is_retryable=True)


# --- cycles -----------------------------------------------------------------------------------------


class CycleOpened(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    why: AnyWhy
    roles: dict[Role, Role]
    """What every live node is from now on, by what it was; a role that is not listed stays."""
    group: int | None = None
    """The group that the cycle is of. None: of all groups, or the run has only one."""
    changed: dict[str, Role] = {}
    """What single nodes are from now on, if only those of a group change."""


class CauseCorrected(_Entry, frozen=True, kw_only=True):
    """The cause of a cycle was not fully known when it opened. This is the true cause."""

    cycle_id: int
    why: AnyWhy


class CycleWaits(_Entry, frozen=True, kw_only=True):
    """The reason to wait has changed."""

    cycle_id: int
    reason: str
    group: int | None = None


class CycleSealed(_Entry, frozen=True, kw_only=True):
    cycle_id: int
    placement: Placement
    roles: dict[Role, Role]
    """What every live node without a rank is from now on, by what it was; a role that is not listed stays."""
    waited_s: float
    master: str
    """Where the workers meet: those of the first group, if there are several."""
    group: int | None = None
    """The group that the cycle is of. None: of all groups, or the run has only one."""
    changed: dict[str, Role] = {}
    """What single nodes without a rank are from now on, if only those of a group change."""


class GroupDissolved(_Entry, frozen=True, kw_only=True):
    """A group that lacked nodes was given up."""

    cycle_id: int
    """Its open cycle, which will not be sealed."""
    group: int
    reason: str
    changed: dict[str, Role]
    """What its nodes are from now on."""


class CyclePlaced(_Entry, frozen=True, kw_only=True):
    """What the placement changed, why, and which losses the spares can replace now."""

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
    """The next cycle opens at a checkpoint. These nodes, if any, are asked to give up their places."""

    cycle_id: int
    incarnations: tuple[str, ...]
    roles: tuple[Role, ...]
    """What these nodes are now: a node that had arrived does not count as arrived any more."""
    nodes: tuple[str, ...]
    reason: str


class CycleSettled(_Entry, frozen=True, kw_only=True):
    """Why a world ended, as far as it will ever be known."""

    cycle_id: int
    failures: int
    first: FailureNote | None
    """None if no node is charged."""


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
    """How many workers it starts."""


class NodesArrived(_Entry, frozen=True, kw_only=True):
    """Nodes that can be placed in this cycle. One entry holds all that were read together."""

    cycle_id: int
    incarnations: tuple[str, ...]
    role: Role = Role.ARRIVED
    """What they are now. With groups, a node that comes later stands by."""


class NodesSilent(_Entry, frozen=True, kw_only=True):
    """Nodes that did not beat for half a lease, with the seconds since their last beat. They may beat again."""

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
    """Seconds since its last beat."""


class NodeFinished(_Entry, frozen=True, kw_only=True):
    """Its workers ended well. It waits in the exit barrier."""

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


class NodeParked(_Entry, frozen=True, kw_only=True):
    """A node was lost too often. It is placed only if the other nodes cannot form a world.

    Journaled when that loss is noticed, and again for every later incarnation of the node.
    """

    cycle_id: int
    incarnation: str
    node: str
    losses: int
    within_s: float
    for_s: float
    """Seconds until it is an ordinary node again."""

    @property
    def reason(self) -> str:
        return f"lost {count(self.losses, 'time')} within {duration(self.within_s)}"


class NodeUnparked(_Entry, frozen=True, kw_only=True):
    """A live node that was parked is an ordinary node again."""

    cycle_id: int
    incarnation: str
    node: str


class WorkersEnded(_Entry, frozen=True, kw_only=True):
    """A node reports that its workers failed."""

    failure: FailureNote


class UpdatesReported(_Entry, frozen=True, kw_only=True):
    """A node passes on what its workers report of updates. One entry holds all of a beat interval, or of a lease."""

    cycle_id: int
    """The cycle of these workers, which may be over."""
    incarnation: str
    node: str
    updates: UpdateCount
    failed: UpdateCount
    retried: UpdateCount
    spent_s: SummedSeconds
    lost_s: SummedSeconds
    """Time of attempts that failed."""
    told: tuple[ReportedUpdate, ...]
    """Of those updates: each that failed or was retried, oldest first, then the newest of the others."""

    @property
    def is_plain(self) -> bool:
        """Whether all of these updates were completed at the first attempt."""
        return not (self.failed or self.retried)


class RankLate(_Entry, frozen=True, kw_only=True):
    """A rank has made no progress for long. The coordinator asks all nodes of its world where their workers are."""

    cycle_id: int
    node: str
    rank: int
    text: str


class HangDenied(_Entry, frozen=True, kw_only=True):
    """A rank was late, and there is no hang."""

    cycle_id: int
    rank: int
    reason: str


class HangFound(_Entry, frozen=True, kw_only=True):
    """The workers of a world hang. Its cycle ends."""

    cycle_id: int
    node: str | None
    """The node that is blamed."""
    rank: int
    """The odd rank of that node; without one, the rank that was late first."""
    step: int | None
    reason: str
    """Which ranks are where."""
    stacks: dict[str, str]
    """The stack of each group of ranks, from the innermost call outwards."""


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
    | GroupDissolved
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
    | NodeParked
    | NodeUnparked
    | WorkersEnded
    | UpdatesReported
    | RankLate
    | HangDenied
    | HangFound
)
Journal = Callable[[Entry], None]


def tell_all(*journals: Journal) -> Journal:
    """A journal that passes every entry to several journals."""

    def tell(entry: Entry) -> None:
        for journal in journals:
            journal(entry)

    return tell


def log_entry(entry: Entry) -> None:
    """Log one line per entry. Joins and goodbyes are at DEBUG, so that a cycle takes fewer than ten lines at INFO."""
    match entry:
        case RankLate() | HangDenied() | HangFound():
            _log_hang(entry)
        case RunBegan() | Looked() | NodesHeard() | NodeFinished() | HostLeft():
            pass  # Logged elsewhere, or not interesting while all is well.
        case NodesArrived():
            log.debug("arrived cycle=%d nodes=%d", entry.cycle_id, len(entry.incarnations))
        case NodesSilent():
            log.debug("silent cycle=%d nodes=%d", entry.cycle_id, len(entry.silent_s))
        case CycleOpened():
            log.info("opened %s because %s", _cycle(entry), entry.why)
        case CauseCorrected():
            log.info("corrected cycle=%d: it opened because of this: %s", entry.cycle_id, entry.why)
        case CycleWaits():
            log.info("waiting %s: %s", _cycle(entry), entry.reason)
        case CycleSealed():
            log.info(
                "sealed %s active=%d standby=%d after_s=%.3f master=%s",
                _cycle(entry),
                len(entry.placement.ranks),
                len(entry.placement.standbys),
                entry.waited_s,
                entry.master,
            )
        case GroupDissolved():
            log.info("dissolved %s: %s; standby=%d", _cycle(entry), entry.reason, len(entry.changed))
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
        case NodeParked() | NodeUnparked():
            _log_parking(entry)
        case CycleCalled(nodes=()):
            log.info("calling cycle=%d at the next checkpoint: %s", entry.cycle_id + 1, entry.reason)
        case CycleCalled():
            named = ", ".join(entry.nodes[:NAMED])
            log.info("draining cycle=%d nodes=%d: %s: %s", entry.cycle_id, len(entry.nodes), named, entry.reason)
        case WorkersEnded():
            _log_failure(entry.failure)
        case UpdatesReported():
            _log_updates(entry)
        case CycleSettled() if entry.first is not None:
            log.info("settled cycle=%d: %d failed, first %s", entry.cycle_id, entry.failures, entry.first)
        case CycleSettled():
            log.info(
                "settled cycle=%d: a node was lost or left, or its end was requested; %d failed, no node is charged",
                entry.cycle_id,
                entry.failures,
            )
        case RecordRefused():
            log.warning(
                "refused a record in cycle=%d: %s: %s",
                entry.cycle_id,
                entry.record.reason,
                entry.record.excerpt,
            )
        case RunEnded():
            log.info("closed verdict=%s", entry.verdict)


def _log_failure(failure: FailureNote) -> None:
    after = "" if failure.after_s is None else f" after_s={failure.after_s:.3f}"
    log.info("failed cycle=%d rank=%d%s: %s", failure.cycle_id, failure.rank, after, failure)


def _log_updates(entry: UpdatesReported) -> None:
    level = logging.DEBUG if entry.is_plain else logging.INFO
    told = next((str(update) for update in entry.told if entry.is_plain or not update.is_plain), "none is told singly")
    log.log(
        level,
        "updates cycle=%d node=%s updates=%d failed=%d retried=%d lost_s=%.3f: %s",
        entry.cycle_id,
        entry.node,
        entry.updates,
        entry.failed,
        entry.retried,
        entry.lost_s,
        told,
    )


def _log_parking(entry: NodeParked | NodeUnparked) -> None:
    match entry:
        case NodeParked():
            log.warning(
                "parked cycle=%d node=%s: %s; for %s it trains only if too few others are there",
                entry.cycle_id,
                entry.node,
                entry.reason,
                duration(entry.for_s),
            )
        case NodeUnparked():
            log.info("unparked cycle=%d node=%s", entry.cycle_id, entry.node)


def _log_hang(entry: RankLate | HangDenied | HangFound) -> None:
    match entry:
        case RankLate():
            log.warning(
                "late cycle=%d node=%s rank=%d: %s; asking all nodes for the stacks of their workers",
                entry.cycle_id,
                entry.node,
                entry.rank,
                entry.text,
            )
        case HangDenied():
            log.info("no hang in cycle=%d, although rank=%d is late: %s", entry.cycle_id, entry.rank, entry.reason)
        case HangFound():
            stacks = "".join(f"\n  ranks {ranks}: {stack}" for ranks, stack in entry.stacks.items())
            log.error("hang cycle=%d blamed=%s: %s%s", entry.cycle_id, entry.node, entry.reason, stacks)


def _cycle(entry: CycleOpened | CycleWaits | CycleSealed | GroupDissolved) -> str:
    """The cycle, and its group if it is of one, with stable keys."""
    return f"cycle={entry.cycle_id}" if entry.group is None else f"cycle={entry.cycle_id} group={entry.group}"
