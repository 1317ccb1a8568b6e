"""A run that trains as three replica groups, told event by event. The real roster says what each event makes of nodes.

What is told goes through the real fold and is compared with the roster, so a story that no coordinator could tell fails
here.
"""

from __future__ import annotations

from collections.abc import Callable

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause, NodeExit
from ft_rendezvous.core.lifecycle import NodeStep, Role, roles_after
from ft_rendezvous.core.model import (
    AnyWhy,
    Arrival,
    Failure,
    Finish,
    FirstCycle,
    Goodbye,
    GroupForms,
    NodeInfo,
    NodesLost,
    Outcome,
    Placement,
    Verdict,
    VerdictKind,
    WorkersFailed,
    node_name,
)
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import encode_line, make_event, take_event
from ft_rendezvous.state.model.records import NodeRole
from ft_rendezvous.state.model.run_state import NS, RunState
from tests.state.story import BEGAN_NS, LEASE_S, LOOK_S

SIZE = 2
"""Nodes of a group."""


class GroupStory:
    """Nodes are known by their infra ranks. A node that comes again is another incarnation."""

    def __init__(self, nnodes: str = "6:8", run_id: str = "hsdp-30b", began_ns: int = BEGAN_NS) -> None:
        self.state, self.roster = RunState(), Roster(has_groups=True)
        self.lines: list[bytes] = []
        self.on_line: Callable[[bytes], None] = lambda _: None
        self.now_ns = began_ns
        self.marks: dict[str, int] = {}
        """How many events there were at moments that have a name."""
        self.common_id = self.newest_id = 0
        self.is_open = False
        """Whether the common cycle is."""
        self.lives: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self.seq = 0
        self.opened_ns: dict[int, int] = {}
        settings = {"nnodes": nnodes, "group_size": str(SIZE), "min_groups": "1", "lease_timeout": "5.0"}
        self.tell(
            journal.RunBegan(
                run_id=run_id,
                epoch="8d1b52c07ae94f36",
                settings=settings,
                versions={"ft_rendezvous": "0.1.0", "torch": "2.13.0"},
                host="node10 pid 4090",
            )
        )

    # --- telling --------------------------------------------------------------------------------------

    def tell(self, entry: journal.Entry, after_s: float = 0.0) -> None:
        self.now_ns += round(after_s * NS)
        event = make_event(self.state.event_id + 1, self.now_ns, entry)
        self.lines.append(encode_line(event))
        self.state = take_event(self.state, event)
        self.on_line(self.lines[-1])

    def compare(self) -> None:
        """What is folded is what the coordinator knows."""
        live = {name: member for name, member in self.state.members.items() if member.end_ns is None}
        assert {name: str(each.role) for name, each in live.items()} == {
            name: str(each.role) for name, each in self.roster.members.items()
        }
        for name, member in live.items():
            world = self.roster.world_of(name)
            if world is not None:
                assert (member.group, member.rank, member.placed_in) == (
                    world.group,
                    world.ranks[name],
                    world.cycle_id,
                )
            elif member.role is not NodeRole.FINISHED:
                assert member.group is None
        assert {number: group.world_id for number, group in self.state.groups.items() if group.is_counted} == {
            number: world.cycle_id for number, world in self.roster.worlds.items()
        }

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.lines)

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds // LOOK_S)):
            live = len(self.roster.members)
            looked = journal.Looked(
                cycle_id=self.common_id, live=live, oldest_s=0.8, operations=9 * self.state.event_id
            )
            self.tell(looked, LOOK_S)
        self.now_ns += round(seconds % LOOK_S * NS)

    # --- nodes ----------------------------------------------------------------------------------------

    def info(self, rank: int) -> NodeInfo:
        pid = 4100 + rank + 100 * self.starts[rank]
        domain = f"rack-{'abcd'[rank // 2 % 4]}"
        return NodeInfo(
            addr=f"10.0.0.{10 + rank}", pid=pid, infra_rank=rank, domain_id=domain, local_world_size=8, born_us=pid
        )

    def name(self, rank: int) -> str:
        return node_name(self.info(rank))

    def join(self, *ranks: int, after_s: float = 0.0) -> None:
        """New nodes come, and arrive."""
        for rank in ranks:
            self.starts[rank] = self.starts.get(rank, 0) + 1
            self.lives[rank] = f"{self.info(rank).pid:016x}"
            self._take_arrival(rank, self.common_id)
            info = self.info(rank)
            self.tell(
                journal.NodeJoined(
                    cycle_id=self.common_id,
                    incarnation=self.lives[rank],
                    node=self.name(rank),
                    is_spare=self.lives[rank] not in self.roster.arrived,
                    addr=info.addr,
                    pid=info.pid,
                    infra_rank=rank,
                    domain=info.domain_id,
                    unit=None,
                    worker_role="default",
                    workers=8,
                ),
                after_s,
            )
        self._tell_arrived(ranks, self.common_id)

    def arrive(self, *ranks: int, after_s: float = 0.0) -> None:
        """Nodes that stopped their workers, or stood by, arrive in the open cycle that concerns them."""
        self.now_ns += round(after_s * NS)
        cycle_id = self.common_id
        for rank in ranks:
            group = self.roster.group_of(self.lives[rank])
            cycle_id = self.common_id if self.is_open or group is None else self.roster.open_groups[group]
            self._take_arrival(rank, cycle_id)
        self._tell_arrived(ranks, cycle_id)

    def _take_arrival(self, rank: int, cycle_id: int) -> None:
        self.seq += 1
        arrival = Arrival(
            cycle_id=cycle_id, incarnation=self.lives[rank], seq=self.seq, node=self.info(rank), bootstrap_port=20_000
        )
        assert self.roster.take(arrival, self.common_id, self.is_open) == []

    def _tell_arrived(self, ranks: tuple[int, ...], cycle_id: int) -> None:
        for role, known in ((Role.ARRIVED, self.roster.arrived), (Role.STANDBY, self.roster.ready)):
            names = tuple(self.lives[rank] for rank in ranks if self.lives[rank] in known)
            if names:
                self.tell(journal.NodesArrived(cycle_id=cycle_id, incarnations=names, role=role))

    def lose(self, rank: int, silent_s: float = LEASE_S, after_s: float = 0.0) -> NodesLost:
        name, world = self.name(rank), self.roster.world_of(self.lives[rank])
        self.roster.drop(self.lives[rank])
        self.tell(
            journal.NodeFenced(
                cycle_id=self.common_id,
                incarnation=self.lives[rank],
                node=name,
                cause=FenceCause.LOST,
                reason="no beat for 5 s",
                silent_s=silent_s,
            ),
            after_s,
        )
        return NodesLost((name,), (0 if world is None else world.ranks[self.lives[rank]],))

    def fail(self, rank: int, reason: str = "exit code 1") -> tuple[FailureNote, WorkersFailed]:
        world = self.roster.world_of(self.lives[rank])
        assert world is not None
        failure = Failure(
            cycle_id=world.cycle_id, incarnation=self.lives[rank], reason=reason, exit_code=1, after_s=60.0
        )
        (note,) = self.roster.take(failure, self.common_id, self.is_open)
        assert isinstance(note, FailureNote)
        self.tell(journal.WorkersEnded(failure=note))
        return note, WorkersFailed(self.name(rank), note.rank, reason)

    def finish(self, *ranks: int) -> None:
        for rank in ranks:
            world = self.roster.world_of(self.lives[rank])
            cycle_id = self.common_id if world is None else world.cycle_id
            self.roster.take(Finish(cycle_id=cycle_id, incarnation=self.lives[rank]), self.common_id, self.is_open)
            self.tell(journal.NodeFinished(cycle_id=cycle_id, incarnation=self.lives[rank], node=self.name(rank)), 0.02)

    def go(self, rank: int, outcome: Outcome, reason: str = "") -> None:
        goodbye = Goodbye(cycle_id=self.common_id, incarnation=self.lives[rank], outcome=outcome, reason=reason)
        (gone,) = self.roster.take(goodbye, self.common_id, self.is_open)
        assert isinstance(gone, NodeExit)
        went = journal.NodeWent(
            cycle_id=self.common_id,
            incarnation=self.lives[rank],
            node=self.name(rank),
            role=gone.role,
            outcome=outcome,
            reason=reason,
        )
        self.tell(went)

    # --- cycles ---------------------------------------------------------------------------------------

    def open(self, why: AnyWhy, group: int | None = None, after_s: float = 0.0) -> int:
        self.now_ns += round(after_s * NS)
        self.newest_id += 1
        self.opened_ns[self.newest_id] = self.now_ns
        if group is not None:
            changed = self.roster.reopen_group(group, self.newest_id)
            entry = journal.CycleOpened(cycle_id=self.newest_id, why=why, roles={}, group=group, changed=changed)
            self.tell(entry)
        else:
            if self.roster.worlds:
                self.roster.reopen()
            self.common_id, self.is_open = self.newest_id, True
            self.tell(journal.CycleOpened(cycle_id=self.newest_id, why=why, roles=roles_after(NodeStep.REOPEN)))
        self.compare()
        return self.newest_id

    def seal(self, *worlds: tuple[int, ...], groups: tuple[int, ...] | None = None, after_s: float = 0.002) -> None:
        """The common cycle: the nodes of each group, by rank."""
        names = tuple(self.lives[rank] for ranks in worlds for rank in ranks)
        standbys = tuple(name for name in self.roster.arrived if name not in names)
        placement = Placement(names, standbys, groups or tuple(range(len(worlds))))
        self.roster.seal(placement, self.common_id)
        self.is_open = False
        self._tell_seal(self.common_id, placement, worlds[0][0], after_s, roles=roles_after(NodeStep.PASS_OVER))

    def seal_group(self, group: int, *ranks: int, after_s: float = 0.002) -> None:
        names = tuple(self.lives[rank] for rank in ranks)
        cycle_id = self.roster.open_groups[group]
        changed = self.roster.seal_group(group, names, cycle_id)
        self._tell_seal(cycle_id, Placement(names, (), (group,)), ranks[0], after_s, group=group, changed=changed)

    def _tell_seal(
        self,
        cycle_id: int,
        placement: Placement,
        first: int,
        after_s: float,
        *,
        roles: dict[Role, Role] | None = None,
        group: int | None = None,
        changed: dict[str, Role] | None = None,
    ) -> None:
        sealed = journal.CycleSealed(
            cycle_id=cycle_id,
            placement=placement,
            roles=roles or {},
            waited_s=(self.now_ns - self.opened_ns[cycle_id]) / NS + after_s,
            master=f"10.0.0.{10 + first}:{20_000 + cycle_id}",
            group=group,
            changed=changed or {},
        )
        self.tell(sealed, after_s)
        spares = len(self.roster.ready)
        effect = f"{spares or 'no'} node{'' if spares == 1 else 's'} stand{'s' if spares == 1 else ''} by for any group"
        self.tell(
            journal.CyclePlaced(cycle_id=cycle_id, kept=0, moved=0, new=len(placement.ranks), benched=0, effect=effect)
        )
        self.compare()

    def form(self, group: int, *ranks: int, after_s: float = 0.0) -> None:
        self.open(GroupForms(SIZE), group, after_s)
        self.seal_group(group, *ranks)

    def dissolve(self, group: int, reason: str, after_s: float = 0.0) -> None:
        cycle_id = self.roster.open_groups[group]
        changed = self.roster.dissolve_group(group)
        entry = journal.GroupDissolved(cycle_id=cycle_id, group=group, reason=reason, changed=changed)
        self.tell(entry, after_s)
        self.compare()

    def lacks(self, group: int, reason: str) -> None:
        cycle_id = self.roster.open_groups[group]
        self.tell(journal.CycleWaits(cycle_id=cycle_id, reason=reason, group=group))

    def end(self, kind: VerdictKind = VerdictKind.SUCCEEDED, reason: str = "") -> None:
        self.tell(journal.RunEnded(verdict=Verdict(kind, reason)))
        for rank, life in self.lives.items():
            if life in self.roster.members:
                is_finished = self.roster.members[life].role is Role.FINISHED
                self.go(rank, Outcome.SUCCEEDED if is_finished else Outcome.LEFT, f"the run is closed: {kind}")


def training(spares: int = 1, nnodes: str = "6:8", began_ns: int = BEGAN_NS, run_id: str = "hsdp-30b") -> GroupStory:
    """Three groups of two nodes train in cycle 1."""
    story = GroupStory(nnodes, run_id, began_ns)
    story.open(FirstCycle(), after_s=0.001)
    story.join(*range(6 + spares), after_s=0.3)
    story.seal((0, 1), (2, 3), (4, 5), after_s=0.4)
    return story


def tell_group_story(run_id: str = "hsdp-30b") -> GroupStory:
    """A night with groups; `marks` has the moments at which to stop."""
    story = training(run_id=run_id)
    story.wait(3_600)
    # A worker of group 1 crashes: that group restarts alone.
    note, why = story.fail(3, "exit code 1: RuntimeError: CUDA error: an illegal memory access")
    story.open(why, 1, after_s=0.1)
    story.arrive(2, after_s=1.2)
    story.lacks(1, f"1 survivor is stopping workers: {story.name(3)}")
    story.mark("a group restarts")
    story.arrive(3, after_s=0.9)
    story.tell(journal.CycleSettled(cycle_id=1, failures=1, first=note))
    story.seal_group(1, 2, 3)
    story.wait(5_400)
    # A node of group 2 is lost, and the spare takes its rank.
    story.open(story.lose(5), 2)
    story.arrive(4, after_s=1.8)
    story.seal_group(2, 4, 6)
    story.wait(1_200)
    # A node of group 1 is lost, too, and nobody is left to replace it.
    story.open(story.lose(2), 1)
    story.arrive(3, after_s=1.4)
    story.lacks(1, f"1 of 2 nodes have arrived; missing: {story.name(2)} (rank 0)")
    story.wait(240)
    story.mark("a group waits")
    story.join(5, after_s=3.0)
    story.seal_group(1, 5, 3)
    story.wait(3_000)
    story.mark("training")
    story.finish(0, 1, 5, 3, 4, 6)
    story.end()
    return story
