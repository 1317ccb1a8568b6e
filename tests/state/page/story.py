"""Runs told entry by entry: what a page must show of them is known, and it can be shown while they go on.

What is told goes through the real fold, so a story that no coordinator could tell fails here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import NodeStep, Role, roles_after
from ft_rendezvous.core.model import (
    AnyWhy,
    FirstCycle,
    NodesLost,
    Outcome,
    Placement,
    Verdict,
    VerdictKind,
    WorkersFailed,
)
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import encode_line, make_event, take_event
from ft_rendezvous.state.model.run_state import NS, KnownNode, RunState

LEASE_S = 60
"""Longer than any test waits: a coordinator that is silent for three of them has vanished."""
LOG_PATH = "/scratch/logs/{run}/cycle_{cycle}/rank_{rank}/stderr.log"


@dataclass
class Story:
    """A run, told in the past or as it happens; `on_line` hears every line."""

    run_id: str = "llama-70b"
    epoch: str = "23c6612f48268673"
    nnodes: str = "8:10"
    began_ago_s: float = 0.0
    on_line: Callable[[bytes], None] = lambda _: None
    state: RunState = field(default_factory=RunState)
    lines: list[bytes] = field(default_factory=list)
    _ahead_ns: int = 0
    _starts: dict[int, list[str]] = field(default_factory=dict)
    """Incarnations by infra rank."""

    def __post_init__(self) -> None:
        self._ahead_ns = -round(self.began_ago_s * NS)
        self.tell(
            journal.RunBegan(
                run_id=self.run_id,
                epoch=self.epoch,
                settings={"nnodes": self.nnodes, "lease_timeout": str(LEASE_S)},
                versions={"ft_rendezvous": "0.1.0", "torch": "2.13.0"},
                host="node-0001 pid 4242",
            )
        )

    # --- time and entries -----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """So much time passes, before now."""
        self._ahead_ns += round(seconds * NS)

    def catch_up(self) -> None:
        """What is told from here on happens now."""
        self._ahead_ns = 0

    def tell(self, entry: journal.Entry) -> None:
        now_ns = max(time.time_ns() + self._ahead_ns, self.state.time_ns)
        event = make_event(self.state.event_id + 1, now_ns, entry)
        self.state = take_event(self.state, event)
        self.lines.append(encode_line(event))
        self.on_line(self.lines[-1])

    # --- who is there -----------------------------------------------------------------------------------

    @property
    def cycle_id(self) -> int:
        return self.state.cycles[-1].cycle_id if self.state.cycles else 0

    def node(self, infra_rank: int) -> KnownNode:
        """The newest start of a node."""
        return self.state.members[self._starts[infra_rank][-1]]

    @property
    def live(self) -> list[KnownNode]:
        return [member for member in self.state.members.values() if member.end_ns is None]

    def join(self, infra_rank: int, domain: str | None = None, addr: str = "") -> KnownNode:
        starts = self._starts.setdefault(infra_rank, [])
        addr = addr or f"10.0.{infra_rank // 250}.{infra_rank % 250 + 1}"
        pid = 4000 + infra_rank + 100_000 * len(starts)
        starts.append(f"{(infra_rank + 1) * 0x9E3779B97F4A7C15 + len(starts) & 2**64 - 1:016x}")
        name = f"infra rank {infra_rank} at {addr} pid {pid}"
        is_sealed = bool(self.state.cycles) and self.state.cycles[-1].seal_time_ns is not None
        self.tell(
            journal.NodeJoined(
                cycle_id=self.cycle_id,
                incarnation=starts[-1],
                node=name,
                is_spare=is_sealed,
                addr=addr,
                pid=pid,
                infra_rank=infra_rank,
                domain=domain,
                unit=None,
                worker_role="trainer",
                workers=8,
            )
        )
        return self.node(infra_rank)

    def join_all(self, count: int, per_domain: int = 4, arrive_s: float = 0.3) -> None:
        for infra_rank in range(count):
            self.join(infra_rank, f"rack-{infra_rank // per_domain + 1:02}")
            self.wait(arrive_s / count)

    def arrive(self, members: Sequence[KnownNode]) -> None:
        names = [member.incarnation for member in members]
        for first in range(0, len(names), 64):
            some = tuple(names[first : first + 64])
            self.tell(journal.NodesArrived(cycle_id=self.cycle_id, incarnations=some))

    # --- cycles -------------------------------------------------------------------------------------------

    def open(self, why: AnyWhy | None = None) -> None:
        self.tell(
            journal.CycleOpened(cycle_id=self.cycle_id + 1, why=why or FirstCycle(), roles=roles_after(NodeStep.REOPEN))
        )

    def seal(self, size: int, waited_s: float = 0.4) -> None:
        """All arrived, the first of them active; who had a rank keeps it, and a spare takes what is free."""
        arrived = [member for member in self.live if member.arrived_in == self.cycle_id]
        seats: dict[int, KnownNode] = {m.rank: m for m in arrived if m.rank is not None and m.rank < size}
        others = [member for member in arrived if member.rank is None or member.rank >= size]
        for rank in range(size):
            if rank not in seats:
                seats[rank] = others.pop(0)
        ranks = tuple(seats[rank].incarnation for rank in range(size))
        placement = Placement(ranks=ranks, standbys=tuple(member.incarnation for member in others))
        master = f"{self.state.members[ranks[0]].addr}:41{self.cycle_id:03}"
        self.tell(
            journal.CycleSealed(
                cycle_id=self.cycle_id,
                placement=placement,
                roles=roles_after(NodeStep.PASS_OVER),
                waited_s=waited_s,
                master=master,
            )
        )
        cover = f"spares cover any {len(others)} nodes"
        self.tell(journal.CyclePlaced(cycle_id=self.cycle_id, kept=size - 1, moved=0, new=1, benched=0, effect=cover))

    def begin(self, count: int, size: int, per_domain: int = 4) -> None:
        """The first cycle, to its seal."""
        self.open()
        self.tell(journal.CycleWaits(cycle_id=1, reason=f"0 of {size} nodes have arrived"))
        self.join_all(count, per_domain)
        self.arrive(self.live)
        self.wait(0.4)
        self.seal(size)

    def look(self) -> None:
        live = len(self.live)
        self.tell(journal.Looked(cycle_id=self.cycle_id, live=live, oldest_s=0.6, operations=90 * self.state.event_id))

    # --- what goes wrong ------------------------------------------------------------------------------------

    def silence(self, infra_rank: int, silent_s: float = 2.5) -> None:
        silent = {self.node(infra_rank).incarnation: silent_s}
        self.tell(journal.NodesSilent(cycle_id=self.cycle_id, silent_s=silent))

    def lose(self, infra_rank: int) -> None:
        """A silent node's lease is over, and the next cycle opens."""
        member = self.node(infra_rank)
        self.tell(
            journal.NodeFenced(
                cycle_id=self.cycle_id,
                incarnation=member.incarnation,
                node=member.name,
                cause=FenceCause.LOST,
                reason="no beat for 5 s",
                silent_s=5.0,
            )
        )
        self.open(NodesLost(nodes=(member.name,), ranks=(member.rank or 0,)))

    def fail(self, infra_rank: int, reason: str = "exit code 1", last_words: str = "", exit_code: int = 1) -> None:
        """A node's workers fail, and the next cycle opens."""
        member = self.node(infra_rank)
        note = FailureNote(
            cycle_id=self.cycle_id,
            key=f"infra rank {infra_rank}",
            incarnation=member.incarnation,
            node=member.name,
            rank=member.first_global_rank or 0,
            exit_code=exit_code,
            after_s=12.3,
            reason=reason,
            log_path=LOG_PATH.format(run=self.run_id, cycle=self.cycle_id, rank=member.first_global_rank),
            last_words=last_words,
        )
        self.tell(journal.WorkersEnded(failure=note))
        self.open(WorkersFailed(node=member.name, rank=note.rank, reason=reason))
        self.tell(journal.CycleSettled(cycle_id=note.cycle_id, failures=1, first=note))

    def recover(self, size: int, after_s: float = 1.2) -> None:
        """All who live arrive, and the world is sealed."""
        self.wait(after_s)
        self.arrive(self.live)
        self.seal(size, after_s)

    # --- the end ------------------------------------------------------------------------------------------

    def end(self, kind: VerdictKind, reason: str = "", is_retryable: bool = False) -> None:
        outcome = {VerdictKind.SUCCEEDED: Outcome.SUCCEEDED, VerdictKind.FAILED: Outcome.FAILED}.get(kind, Outcome.LEFT)
        if kind is VerdictKind.SUCCEEDED:
            for member in self.live:
                if member.rank is not None:
                    self.tell(
                        journal.NodeFinished(cycle_id=self.cycle_id, incarnation=member.incarnation, node=member.name)
                    )
        self.tell(journal.RunEnded(verdict=Verdict(kind, reason, is_retryable)))
        for member in self.live:
            self.tell(
                journal.NodeWent(
                    cycle_id=self.cycle_id,
                    incarnation=member.incarnation,
                    node=member.name,
                    role=Role(member.role),
                    outcome=outcome,
                    reason="",
                )
            )


def eventful(began_ago_s: float = 3.3 * 3600, **options: object) -> Story:
    """Hours of training on eight nodes with two spares, and what can happen in them."""
    story = Story(began_ago_s=began_ago_s, **options)  # type: ignore[arg-type]
    story.begin(10, 8)
    story.wait(0.42 * began_ago_s)
    cuda = "RuntimeError: CUDA error: an illegal memory access was encountered"
    story.fail(3, "exit code 1", cuda)
    story.recover(8, 1.4)
    story.wait(0.25 * began_ago_s)
    story.silence(5)
    story.wait(2.5)
    story.lose(5)
    story.recover(8, 2.1)
    story.wait(40)
    story.join(5, "rack-02")
    story.wait(0.2 * began_ago_s)
    story.fail(1, "signal SIGKILL (exit code -9)", "", -9)
    story.recover(8, 6.5)
    story.wait(60)
    story.look()
    return story


def crowded(count: int = 10_000, spares: int = 40, per_domain: int = 72) -> Story:
    """As many nodes as a run may have, some of them in trouble."""
    story = Story(began_ago_s=1800, run_id="frontier-1", nnodes=f"{count - spares}:{count}")
    story.begin(count, count - spares, per_domain)
    story.wait(900)
    for infra_rank in (17, 1234, 7007):
        story.silence(infra_rank)
    story.wait(2.5)
    story.lose(17)
    story.recover(count - spares, 4.0)
    story.wait(60)
    for infra_rank in (4321, 4322, 9000):
        story.silence(infra_rank)
    story.catch_up()
    story.look()
    return story
