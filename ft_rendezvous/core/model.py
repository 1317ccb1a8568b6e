"""The types of the protocol: records that nodes write, events and views that the coordinator publishes, verdicts.

Pure data. Everything that goes through the store is a msgspec struct, so that decoding is strict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from ft_rendezvous.core.stacks import MAX_FRAMES, RankStack
from ft_rendezvous.core.update_notes import UpdateNote, UpdateSums
from ft_rendezvous.text import NAMED, count

STORE_FORMAT: Final = 6
"""Version of all data in the store. A record of another version is refused."""


class Outcome(StrEnum):
    """How a node's own part ended. The node says so in its goodbye."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LEFT = "left"
    """It left for a reason of its own: a signal or an exception."""
    DRAINED = "drained"
    """It was asked to give up its place, and it did."""


class VerdictKind(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verdict(msgspec.Struct, frozen=True):
    """How a run ended, for good."""

    kind: VerdictKind
    reason: str = ""
    is_retryable: bool = False
    """Whether the same job may succeed if it is started again: it had too few nodes, or it was drained."""

    def __str__(self) -> str:
        return f"{self.kind}({self.reason})" if self.reason else str(self.kind)


INCARNATION_DIGITS = 16
Incarnation = Annotated[str, msgspec.Meta(min_length=INCARNATION_DIGITS, max_length=INCARNATION_DIGITS)]
"""Names one uninterrupted life of an agent in a run, in hex digits."""

# --- records that nodes write -------------------------------------------------------------------------------


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The facts about a node that do not change while its agent process lives."""

    addr: str
    pid: int
    infra_rank: int | None = None
    domain_id: str | None = None
    unit_id: str | None = None
    role: str | None = None
    local_world_size: int | None = None
    born_us: int = 0
    """When this process started, on its machine's clock, which begins anew with every boot."""
    boot_id: str = ""
    """Names one boot of one machine. Only starts of the same boot can be compared by `born_us`."""


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The fields of every record. A record is refused if its log is of another cycle. The log's key has the epoch.

    Records are arrays without field names: that halves the bytes, and the coordinator reads all of them.
    """

    v: Literal[6] = STORE_FORMAT
    cycle_id: int
    incarnation: Incarnation


class Arrival(Record, frozen=True, kw_only=True, tag="arrive"):
    """A node is ready to be placed in this cycle."""

    seq: Annotated[int, msgspec.Meta(ge=1)]
    node: NodeInfo
    bootstrap_port: int
    """The port at which this node listens for workers, if it gets rank 0."""


class Withdrawal(Record, frozen=True, kw_only=True, tag="withdraw"):
    """A node is not healthy and does not train. It may never have arrived."""

    node: NodeInfo
    reason: str


class Failure(Record, frozen=True, kw_only=True, tag="fail"):
    """An active node cannot continue in this cycle and asks for the next one."""

    reason: str
    rank: int | None = None
    """The global rank of the worker that was the first to end on this node."""
    exit_code: int | None = None
    after_s: float | None = None
    """When it ended, in seconds since this node learned of the seal, on its own clock."""
    log_path: str = ""
    """The file that holds that worker's standard error, if there is one."""
    last_words: str = ""
    """The last line of that file."""


class Finish(Record, frozen=True, kw_only=True, tag="finish"):
    """An active node's workers ended well. The node is in the exit barrier and never trains again."""


class Goodbye(Record, frozen=True, kw_only=True, tag="goodbye"):
    """A node leaves. A goodbye does not close the run: the coordinator decides what it means."""

    outcome: Outcome
    reason: str = ""


class RequestKind(StrEnum):
    RESTART = "restart"
    DRAIN = "drain"
    CLOSE = "close"
    ROSTER = "roster"
    """An operator asks for the list of nodes."""


class Request(Record, frozen=True, kw_only=True, tag="request"):
    """A request for a decision: by a worker through its agent, by an agent, or by an operator."""

    kind: RequestKind
    target: str = ""
    """The node to drain: an infra rank, an address or `address:pid`. Empty: the node that wrote the request. Of a
    restart: the number of a group, or empty for all groups."""
    reason: str = ""


class Checkpoint(Record, frozen=True, kw_only=True, tag="checkpoint"):
    """The workers have just written a checkpoint, and the next cycle waits for that."""


class UpdateNews(Record, frozen=True, kw_only=True, tag="updates"):
    """What workers of this node have reported of updates since its last such record."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    """Grows from one such record of a node to the next: one that is written twice counts once."""
    worker_cycle_id: Annotated[int, msgspec.Meta(ge=1)]
    """The cycle of these workers. The record may be in the log of a later one."""
    merged: UpdateSums
    """Updates that are not in `notes`."""
    notes: tuple[UpdateNote, ...]
    """Those that failed or were retried, oldest first; then the newest plain one."""

    @property
    def sums(self) -> UpdateSums:
        """Of all updates in this record."""
        sums = self.merged
        for note in self.notes:
            sums = sums.plus(note)
        return sums


class Late(Record, frozen=True, kw_only=True, tag="late"):
    """A rank of this node has made no progress for long. It may hang, or wait for a rank that does."""

    rank: int
    step: int | None
    """The last step that it has told. None: it has told none."""
    late_s: float
    after_s: float
    """Since this node took its place, on its own clock."""
    is_starting: bool = False
    """No worker of this node has made any progress yet."""


class Stacks(Record, frozen=True, kw_only=True, tag="stacks"):
    """Where the workers of this node are: the answer to an inquiry."""

    inquiry: int
    """The number of the event that asks."""
    stacks: tuple[RankStack, ...] = ()
    depth: int = MAX_FRAMES
    """How many frames of a stack are told. Stacks that are cut at different depths cannot be compared."""
    paused: tuple[tuple[int, str], ...] = ()
    """Ranks that have announced a pause, or that a debugger holds, and why."""
    moving: tuple[int, ...] = ()
    """Ranks that have made progress not long ago."""


AnyRecord = Arrival | Withdrawal | Failure | Finish | Goodbye | Request | Checkpoint | UpdateNews | Late | Stacks


# --- why a cycle was opened -------------------------------------------------------------------------


class Why(msgspec.Struct, frozen=True, tag_field="why"):
    """Base class of the reasons to open a cycle."""


class FirstCycle(Why, frozen=True, tag="first"):
    def __str__(self) -> str:
        return "the run begins"


class WorkersFailed(Why, frozen=True, tag="workers_failed"):
    node: str
    rank: int
    reason: str

    def __str__(self) -> str:
        return f"workers failed on {self.node} (rank {self.rank}): {self.reason}"


class WorkersHang(Why, frozen=True, tag="workers_hang"):
    """Workers make no progress, and do not end."""

    node: str
    """The node that is blamed. Without one, the node that said first that a rank is late."""
    rank: int
    reason: str
    is_blamed: bool

    def __str__(self) -> str:
        blame = f" on {self.node} (rank {self.rank})" if self.is_blamed else ""
        return f"workers hang{blame}: {self.reason}"


class NodesLost(Why, frozen=True, tag="nodes_lost"):
    """Names only the first few: every live node reads this, even when thousands are lost at once."""

    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    count: int = 1

    def __str__(self) -> str:
        named = ", ".join(f"{node} (rank {rank})" for node, rank in zip(self.nodes, self.ranks, strict=True))
        rest = self.count - len(self.nodes)
        return f"lost {named}" + (f" and {rest} more" if rest else "")


class NodeLeft(Why, frozen=True, tag="node_left"):
    node: str
    rank: int
    outcome: Outcome
    reason: str

    def __str__(self) -> str:
        tail = f": {self.reason}" if self.reason else ""
        return f"{self.node} (rank {self.rank}) went, {self.outcome}{tail}"


class RestartRequested(Why, frozen=True, tag="restart_requested"):
    by: str
    reason: str

    def __str__(self) -> str:
        return f"{self.by} asked for a restart: {self.reason or 'no reason given'}"


class NodesDrain(Why, frozen=True, tag="nodes_drain"):
    """Names only the first few."""

    nodes: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        rest = self.count - len(self.nodes)
        return f"draining {', '.join(self.nodes)}" + (f" and {rest} more" if rest else "")


class WorldGrows(Why, frozen=True, tag="world_grows"):
    was: int
    to: int

    def __str__(self) -> str:
        return f"the world can grow from {self.was} to {self.to} nodes"


class NoGroupTrains(Why, frozen=True, tag="no_group_trains"):
    """All groups restart together."""

    groups: tuple[int, ...]
    """The groups that ended just now."""
    first: str
    """Why the first of them ended."""
    is_hang: bool = False
    """The workers of the first of them hang."""

    def __str__(self) -> str:
        return f"no group trains any more: {group_names(self.groups)} ended, the first because {self.first}"


class GroupFailsAgain(Why, frozen=True, tag="group_fails_again"):
    """All groups restart together, because restarts of one group did not help."""

    group: int
    times: int

    def __str__(self) -> str:
        return f"group {self.group} failed {self.times} times in a row soon after its start"


class GroupForms(Why, frozen=True, tag="group_forms"):
    """Nodes that stand by form a group."""

    nodes: int

    def __str__(self) -> str:
        return f"{count(self.nodes, 'node')} {'stands' if self.nodes == 1 else 'stand'} by that no other group lacks"


AnyWhy = (
    FirstCycle
    | WorkersFailed
    | WorkersHang
    | NodesLost
    | NodeLeft
    | RestartRequested
    | NodesDrain
    | WorldGrows
    | NoGroupTrains
    | GroupFailsAgain
    | GroupForms
)


def group_names(groups: Sequence[int]) -> str:
    """Groups by name, the first few."""
    named = ", ".join(map(str, groups[:NAMED]))
    rest = len(groups) - NAMED
    return f"group{'' if len(groups) == 1 else 's'} {named}" + (f" and {rest} more" if rest > 0 else "")


# --- what the coordinator publishes -----------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    no: int
    cycle_id: int
    shards: int
    ring_at: int
    """Fewer arrivals than this cannot form a world, so they do not wake the coordinator."""
    channels: int
    """In how many copies each event is published. The number does not change in a run."""
    why: AnyWhy
    log_id: int
    """The cycle whose log holds the records of this cycle: this cycle, or the last common one before it."""
    group: int | None = None
    """The group that this cycle is of. None: of all groups, or the run has only one."""


class WorkerRanks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The ranks of a node's workers. Without this, torch's agent computes them through the store."""

    base_global_rank: int
    global_world_size: int
    base_role_rank: int
    role_world_size: int


class Seat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node's part in a sealed cycle. `rank` is None for a standby. Ranks are those in the node's group."""

    rank: int | None
    workers: WorkerRanks | None = None
    group: int = 0


class Master(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the workers of one group meet."""

    addr: str
    port: int


class Sealed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="sealed"):
    no: int
    cycle_id: int
    world_size: int
    """Nodes of a group."""
    counted: int
    """Number of arrivals at the seal. An arrival with a higher number came after the seal."""
    masters: dict[int, Master]
    """Where the workers of each group meet that this seal places."""
    group: int | None = None
    """The group that the cycle is of. None: of all groups, or the run has only one."""
    group_count: int = 1
    """How many groups the run has or wants, whichever is more: no group has a higher number."""
    seats: dict[str, Seat] = {}
    """The seats of this copy's channel. The head has none."""


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    no: int
    verdict: Verdict


class Called(msgspec.Struct, frozen=True, kw_only=True, tag="called"):
    """The next cycle is to open at a checkpoint. Some nodes may be asked to give up their places in it."""

    no: int
    cycle_id: int
    draining: tuple[str, ...]
    """The incarnations that are asked to give up their places."""
    reason: str
    group: int | None = None
    """The group whose next cycle is meant. None: of all nodes, or the run has one group."""


class Inquired(msgspec.Struct, frozen=True, kw_only=True, tag="inquired"):
    """A rank is late: the nodes that train in this cycle and group say where their workers are."""

    no: int
    cycle_id: int
    group: int


AnyEvent = Opened | Sealed | Called | Inquired | Closed


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The run after event `no`. A new node reads it from the head; every other node folds it from events."""

    no: int
    opened: Opened
    sealed: Sealed | None = None
    called: Called | None = None
    closed: Closed | None = None

    @property
    def cycle_id(self) -> int:
        return self.opened.cycle_id

    def group_of(self, incarnation: str) -> int | None:
        """The group in which the last seal gave a node a rank; None if it did not."""
        seat = self.sealed.seats.get(incarnation) if self.sealed is not None else None
        return seat.group if seat is not None and seat.rank is not None else None


class Answer(msgspec.Struct, frozen=True):
    """The coordinator's answer to an operator's request."""

    request: str
    """The incarnation that the operator's command chose for this one request."""
    is_granted: bool
    text: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Which run this store belongs to, and the state of the run: all that a new node needs."""

    v: int = STORE_FORMAT
    run_id: str
    epoch: str
    settings: dict[str, str]
    view: View
    """The last common cycle, and the number of the last event."""
    seals: tuple[tuple[int, int], ...] = ()
    """The seals of single groups that a newcomer may have a seat in: number of the event, and arrivals counted."""
    lighthouse: str = ""
    """The address of the run's torchft lighthouse, if it has one."""
    lifeline_port: int = 0
    """Where the host listens for lifelines. 0: it does not."""


def fold(view: View, event: AnyEvent) -> View:
    """The view of the run after one more event: what concerns a single group only counts."""
    assert event.no == view.no + 1, f"event {event.no} after {view.no}"
    if isinstance(event, Opened | Sealed) and event.group is not None:
        return msgspec.structs.replace(view, no=event.no)
    return _take_in(view, event)


def fold_for(view: View, event: AnyEvent, incarnation: str) -> View:
    """A node's own view after one more event.

    An opening of a group concerns the nodes that its last seal has placed, even if they have not started yet. A seal of
    a group concerns them, and the nodes that it gives a rank. A call concerns the nodes of its cycle, and those that it
    asks to go.
    """
    assert event.no == view.no + 1, f"event {event.no} after {view.no}"
    if isinstance(event, Opened) and event.group is not None and view.group_of(incarnation) != event.group:
        return msgspec.structs.replace(view, no=event.no)
    if isinstance(event, Called) and incarnation not in event.draining:
        is_of_other = event.group is not None and event.group != view.group_of(incarnation)
        if is_of_other or event.cycle_id != view.cycle_id:
            return msgspec.structs.replace(view, no=event.no)
    if isinstance(event, Sealed) and event.group is not None:
        if is_placed(event, incarnation):
            # The opening of that cycle did not concern this node. It differs from the last one that did in these.
            opened = msgspec.structs.replace(view.opened, cycle_id=event.cycle_id, group=event.group)
            return View(no=event.no, opened=opened, sealed=event, closed=view.closed)
        # The group may have opened anew since this node heard of its opening: its seal ends the wait all the same.
        awaits_seal = view.opened.group == event.group and view.sealed is None
        if not awaits_seal:
            return msgspec.structs.replace(view, no=event.no)
    return _take_in(view, event)


def is_placed(sealed: Sealed, incarnation: str) -> bool:
    """Whether a seal gives a node a rank. Only the copy of the node's channel knows."""
    seat = sealed.seats.get(incarnation)
    return seat is not None and seat.rank is not None


def _take_in(view: View, event: AnyEvent) -> View:
    match event:
        case Opened():
            return View(no=event.no, opened=event)
        case Sealed():
            return msgspec.structs.replace(view, no=event.no, sealed=event)
        case Called():
            return msgspec.structs.replace(view, no=event.no, called=event)
        case Inquired():
            return msgspec.structs.replace(view, no=event.no)
        case Closed():
            return msgspec.structs.replace(view, no=event.no, closed=event)


# --- placement --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """Incarnations by rank, and the incarnations that arrived and were not placed."""

    ranks: tuple[str, ...]
    """One group after the other, all of the same size."""
    standbys: tuple[str, ...]
    groups: tuple[int, ...] = (0,)
    """The groups, in the order of `ranks`."""

    def by_group(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Each group with its incarnations by rank."""
        size = len(self.ranks) // len(self.groups)
        for index, group in enumerate(self.groups):
            yield group, self.ranks[index * size : (index + 1) * size]


def node_key(node: NodeInfo) -> str:
    """Identifies a node across its starts: its infra rank, or its address if it has none."""
    return f"infra rank {node.infra_rank}" if node.infra_rank is not None else node.addr


def node_name(node: NodeInfo) -> str:
    """The name of a node in logs and errors. Parts that are not known are left out."""
    where = f"{node.addr} pid {node.pid}" if node.pid else node.addr
    rank = "" if node.infra_rank is None else f"infra rank {node.infra_rank}"
    return f"{rank} at {where}" if rank and where else rank or where
