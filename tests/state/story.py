"""A night of a run, told event by event: a crash, a lost node that flaps, a drain. What examples and goldens show."""

from __future__ import annotations

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import NodeStep, Role, roles_after
from ft_rendezvous.core.model import (
    AnyWhy,
    FirstCycle,
    NodesDrain,
    NodesLost,
    Outcome,
    Placement,
    Verdict,
    VerdictKind,
    WorkersFailed,
)
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import encode_line, make_event, take_event
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.text import count

BEGAN_NS = 1_741_917_600 * NS
"""2025-03-14 02:00:00 UTC."""
LEASE_S = 5.0
LOOK_S = 300.0
"""A story that looked once per lease would be dull."""


class Story:
    """Ten nodes in two racks, of which eight train."""

    def __init__(self) -> None:
        self.state = RunState()
        self.lines: list[bytes] = []
        self.now_ns = BEGAN_NS
        self.cycle_id = 0
        self.lives: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self.marks: dict[str, int] = {}
        """How many events there were at moments that have a name."""

    def tell(self, entry: journal.Entry, after_s: float = 0.0) -> None:
        self.now_ns += round(after_s * NS)
        event = make_event(self.state.event_id + 1, self.now_ns, entry)
        self.lines.append(encode_line(event))
        self.state = take_event(self.state, event)

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.lines)

    def name(self, rank: int) -> str:
        return f"infra rank {rank} at 10.0.0.{10 + rank} pid {self.pids[rank]}"

    def join(self, rank: int, after_s: float = 0.0, is_spare: bool = False) -> None:
        self.pids[rank] = self.pids.get(rank, 4100 + rank) + 100
        self.lives[rank] = f"{self.pids[rank]:016x}"
        self.tell(
            journal.NodeJoined(
                cycle_id=self.cycle_id,
                incarnation=self.lives[rank],
                node=self.name(rank),
                is_spare=is_spare,
                addr=f"10.0.0.{10 + rank}",
                pid=self.pids[rank],
                infra_rank=rank,
                domain="rack-a" if rank < 5 else "rack-b",
                unit=None,
                worker_role="default",
                workers=8,
            ),
            after_s,
        )

    def arrive(self, *ranks: int, after_s: float = 0.0) -> None:
        lives = tuple(self.lives[rank] for rank in ranks)
        self.tell(journal.NodesArrived(cycle_id=self.cycle_id, incarnations=lives), after_s)

    def open(self, why: AnyWhy, after_s: float = 0.0) -> None:
        self.cycle_id += 1
        self.opened_ns = self.now_ns + round(after_s * NS)
        self.tell(journal.CycleOpened(cycle_id=self.cycle_id, why=why, roles=roles_after(NodeStep.REOPEN)), after_s)

    def seal(self, ranks: list[int], standbys: list[int], new: int, after_s: float = 0.002) -> None:
        placement = Placement(tuple(self.lives[r] for r in ranks), tuple(self.lives[r] for r in standbys))
        waited_s = (self.now_ns - self.opened_ns) / NS + after_s
        master = f"10.0.0.{10 + ranks[0]}:{20_000 + self.cycle_id}"
        self.tell(
            journal.CycleSealed(
                cycle_id=self.cycle_id,
                placement=placement,
                roles=roles_after(NodeStep.PASS_OVER),
                waited_s=waited_s,
                master=master,
            ),
            after_s,
        )
        self.tell(
            journal.CyclePlaced(
                cycle_id=self.cycle_id,
                kept=len(ranks) - new,
                moved=0,
                new=new,
                benched=0,
                effect=f"spares cover any {count(len(standbys), 'node')}",
            )
        )

    def train(self, seconds: float, live: int) -> None:
        for _ in range(int(seconds // LOOK_S)):
            looked = journal.Looked(cycle_id=self.cycle_id, live=live, oldest_s=0.8, operations=9 * len(self.lines))
            self.tell(looked, LOOK_S)
        self.now_ns += round(seconds % LOOK_S * NS)

    def fail(self, rank: int, worker: int, exit_code: int, reason: str, after_s: float) -> FailureNote:
        note = FailureNote(
            cycle_id=self.cycle_id,
            key=f"infra rank {rank}",
            incarnation=self.lives[rank],
            node=self.name(rank),
            rank=worker,
            exit_code=exit_code,
            after_s=after_s,
            reason=reason,
            log_path=f"ft-logs/llm-7b/node-{rank}/cycle-{self.cycle_id}/{worker % 8}/stderr.log",
        )
        self.tell(journal.WorkersEnded(failure=note))
        return note

    def silence(self, rank: int, silent_s: float) -> None:
        self.tell(journal.NodesSilent(cycle_id=self.cycle_id, silent_s={self.lives[rank]: silent_s}), 0.1)

    def lose(self, rank: int) -> None:
        self.silence(rank, LEASE_S / 2)
        fenced = journal.NodeFenced(
            cycle_id=self.cycle_id,
            incarnation=self.lives[rank],
            node=self.name(rank),
            cause=FenceCause.LOST,
            reason="no beat for 5 s",
            silent_s=LEASE_S,
        )
        self.tell(fenced, LEASE_S / 2)

    def park(self, rank: int, for_s: float) -> None:
        parked = journal.NodeParked(
            cycle_id=self.cycle_id,
            incarnation=self.lives[rank],
            node=self.name(rank),
            losses=3,
            within_s=3600.0,
            for_s=for_s,
        )
        self.tell(parked)


def tell_watched_story() -> Story:
    """A run that looks for hangs: eight nodes train, and seven of them wait for one rank of the other."""
    story = Story()
    _gather(story)
    progress = {story.lives[rank]: journal.ToldProgress(18_412, 70, 8 * rank) for rank in range(8)}
    progress[story.lives[3]] = journal.ToldProgress(18_411, 71, 27)
    looked = journal.Looked(
        cycle_id=1, live=10, oldest_s=0.8, operations=9 * len(story.lines), progress=progress, late_after_s=120
    )
    story.tell(looked, LEASE_S)
    story.mark("a rank waits")
    return story


def tell_story() -> Story:
    """The whole night; `marks` has the moments at which to stop."""
    story = Story()
    for chapter in (_gather, _crash, _lose_and_flap, _drain, _end):
        chapter(story)
    return story


def _gather(story: Story) -> None:
    began = journal.RunBegan(
        run_id="llm-7b",
        epoch="5f0c2a9e1b7d4836",
        settings={"nnodes": "8:10", "lease_timeout": "5.0", "beat_interval": "1.0"},
        versions={"ft_rendezvous": "0.1.0", "torch": "2.13.0"},
        host="node10 pid 4090",
    )
    story.tell(began)
    story.open(FirstCycle(), 0.001)
    for rank in range(7):
        story.join(rank, 0.3)
        story.arrive(rank)
    waits = journal.CycleWaits(cycle_id=1, reason="7 of 8 nodes have arrived")
    story.tell(waits)
    story.mark("gathering")
    story.join(8, 38.7)
    story.join(9, 0.1)
    story.join(7, 0.1)
    story.arrive(7, 8, 9)
    story.seal(list(range(8)), [8, 9], new=8)
    story.train(4_320, 10)


def _crash(story: Story) -> None:
    first = story.fail(3, 27, 1, "exit code 1: RuntimeError: CUDA error: an illegal memory access", 4_319.2)
    story.open(WorkersFailed(story.name(3), 3, first.reason), 0.1)
    story.arrive(8, 9, after_s=0.1)
    story.arrive(0, 1, 2, 3, 4, 6, 7, after_s=2.8)
    story.tell(journal.CycleWaits(cycle_id=2, reason=f"1 survivor is stopping workers: {story.name(5)}"))
    story.mark("restarting")
    story.arrive(5, after_s=9.4)
    story.tell(journal.CycleSettled(cycle_id=1, failures=1, first=first))
    story.seal(list(range(8)), [8, 9], new=0)
    story.train(9_600, 10)


def _lose_and_flap(story: Story) -> None:
    story.lose(6)
    lost = NodesLost((story.name(6),), (6,))
    story.open(lost)
    story.arrive(8, 9, after_s=0.1)
    story.arrive(0, 1, 2, 3, 4, 5, 7, after_s=3.1)
    story.seal([0, 1, 2, 3, 4, 5, 8, 7], [9], new=1)
    story.train(600, 9)
    for _ in range(2):
        story.join(6, 30.0, is_spare=True)
        story.train(300, 10)
        story.lose(6)
    story.park(6, for_s=3600.0)
    story.join(6, 40.0, is_spare=True)
    story.park(6, for_s=3560.0)
    story.train(1_500, 10)
    story.silence(6, 2.6)
    story.mark("a spare is silent")
    story.tell(journal.NodesHeard(cycle_id=3, incarnations=(story.lives[6],)), 1.2)
    story.mark("training")


def _drain(story: Story) -> None:
    called = (story.lives[2],)
    reason = "an operator asked for it: fan alarm"
    story.tell(
        journal.CycleCalled(
            cycle_id=3, incarnations=called, roles=(Role.ACTIVE,), nodes=(story.name(2),), reason=reason
        ),
        after_s=60.0,
    )
    story.open(NodesDrain((story.name(2),), 1), 48.0)
    story.arrive(9, 6, after_s=0.1)
    story.arrive(0, 1, 3, 4, 5, 8, 7, after_s=2.2)
    story.seal([0, 1, 9, 3, 4, 5, 8, 7], [6], new=1)
    story.tell(
        journal.NodeWent(
            cycle_id=4,
            incarnation=story.lives[2],
            node=story.name(2),
            role=Role.HOT_SPARE,
            outcome=Outcome.DRAINED,
            reason=reason,
        ),
        0.4,
    )
    story.train(5_400, 9)


def _end(story: Story) -> None:
    second = story.fail(4, 33, -9, "signal 9 (SIGKILL)", 5_399.5)
    story.open(WorkersFailed(story.name(4), 4, second.reason), 0.1)
    story.arrive(6, after_s=0.1)
    story.arrive(0, 1, 9, 3, 5, 8, 7, after_s=2.6)
    story.arrive(4, after_s=1.9)
    story.tell(journal.CycleSettled(cycle_id=4, failures=1, first=second))
    story.seal([0, 1, 9, 3, 4, 5, 8, 7], [6], new=0)
    story.train(3_000, 9)
    story.mark("before the end")

    for rank in (0, 1, 9, 3, 4, 5, 8, 7):
        story.tell(journal.NodeFinished(cycle_id=5, incarnation=story.lives[rank], node=story.name(rank)), 0.02)
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.SUCCEEDED)))
    for rank in (0, 1, 9, 3, 4, 5, 8, 7):
        gone = "its workers ended well"
        story.tell(
            journal.NodeWent(
                cycle_id=5,
                incarnation=story.lives[rank],
                node=story.name(rank),
                role=Role.FINISHED,
                outcome=Outcome.SUCCEEDED,
                reason=gone,
            )
        )
    closed = "run 'llm-7b' is closed: succeeded"
    story.tell(
        journal.NodeWent(
            cycle_id=5,
            incarnation=story.lives[6],
            node=story.name(6),
            role=Role.STANDBY,
            outcome=Outcome.LEFT,
            reason=closed,
        )
    )
