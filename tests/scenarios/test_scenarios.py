"""Transcripts of whole runs, reviewed as diffs. `FT_REWRITE=1 pytest tests/scenarios` writes them again.

A scenario is a text file of blocks. A block is some commands, a line `----`, and the transcript of what they cause.

    nodes 3:4 [key=value ...]         start a run; keys are those of --rdzv-conf
    join a [infra=0] [addr=x] [domain=d] [unit=u] [settings=other]     or several: join a b c
    fail a | finish a | finish all    workers end
    kill a | freeze a | thaw a        SIGKILL, SIGSTOP, SIGCONT
    spend a | leave a                 the agent leaves: it has no restarts left, or got a signal
    busy a | ready a                  the agent begins, then ends, a slow stop of its workers
    hang a | wake a                   the node beats but does nothing; then it continues
    save a                            its workers report a checkpoint
    ghost                             a node counts its arrival and dies before it writes the record
    advance 6s                        let time pass
    seats                             show which node trains with which rank
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.config.settings import RunSettings, parse_settings
from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.errors import FtError
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.ops import Add
from ft_rendezvous.protocol.participant import Place
from tests.scenarios.simulated_cluster import Cluster, Node
from tests.sim.store import SimStore

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))
MUST_REWRITE = os.environ.get("FT_REWRITE") == "1"


class Stage:
    """Performs the commands of a scenario and writes the transcript."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "a scenario begins with `nodes`"
        return self._cluster

    def perform(self, command: str) -> None:
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        match verb:
            case "nodes":
                self._begin(names[0], options)
            case "join":
                for name in names:
                    self._join(name, options)
            case "advance":
                self.cluster.advance(float(names[0].removesuffix("s")))
            case "ghost":
                coordinator = self.cluster.coordinator
                self.cluster.store.perform(Add(coordinator.keys.arrived(coordinator.cycle_id), 1))
            case "seats":
                self._tell_seats()
            case _:
                for name in [node.name for node in self.cluster.training] if names == ["all"] else names:
                    self._do(verb, self.cluster.nodes[name])
        self.cluster.settle()

    def _begin(self, nnodes: str, conf: dict[str, str]) -> None:
        low, _, high = nnodes.partition(":")
        settings: RunSettings = parse_settings(
            endpoint="head:29400",
            run_id="r",
            min_nodes=int(low),
            max_nodes=int(high or low),
            conf=conf,
            env={},
        ).run
        self._cluster = Cluster(settings, SimStore(), self._tell_entry, self._tell_news)

    def _join(self, name: str, options: dict[str, str]) -> None:
        self.cluster.join(
            name,
            addr=options.get("addr"),
            infra_rank=int(options["infra"]) if "infra" in options else None,
            domain_id=options.get("domain"),
            unit_id=options.get("unit"),
        )
        self.cluster.settle()

    def _do(self, verb: str, node: Node) -> None:
        match verb:
            case "fail":
                node.fail()
            case "finish":
                node.finish()
            case "kill":
                node.kill()
            case "freeze" | "thaw":
                node.is_frozen = verb == "freeze"
            case "hang" | "wake":
                node.is_hung = verb == "hang"
            case "save":
                node.save()
            case "busy" | "ready":
                node.is_busy = verb == "busy"
            case "spend":
                node.leave(Outcome.FAILED, "worker rank 0 exited with 1")
            case "leave":
                node.leave(Outcome.LEFT, "SIGTERM")
            case _:
                raise AssertionError(f"no such command: {verb}")

    # --- the transcript -----------------------------------------------------------------------------

    def _name(self, incarnation: str) -> str:
        return self.cluster.names.get(incarnation, incarnation)

    def _tell_entry(self, entry: journal.Entry) -> None:
        text = self._describe(entry)
        if text is not None:
            self.lines.append(f"coordinator: {text}")

    def _describe(self, entry: journal.Entry) -> str | None:
        """The entry as one line, or None: the lines of the nodes show the rest."""
        match entry:
            case journal.CycleOpened():
                return f"opens cycle {entry.cycle_id}: {entry.why}"
            case journal.CauseCorrected():
                return f"corrects the cause of cycle {entry.cycle_id}: {entry.why}"
            case journal.CycleWaits():
                return f"waits in cycle {entry.cycle_id}: {entry.reason}"
            case journal.CycleSealed():
                ranks = " ".join(f"{rank}={self._name(who)}" for rank, who in enumerate(entry.placement.ranks))
                standbys = "".join(f" standby={self._name(who)}" for who in entry.placement.standbys)
                return f"seals cycle {entry.cycle_id} after {entry.waited_s:g} s: {ranks}{standbys}"
            case journal.NodeJoined():
                return f"admits {entry.node}{' as a spare' if entry.is_spare else ''}"
            case journal.NodeFenced():
                return f"fences {self._name(entry.incarnation)}: {entry.reason}"
            case journal.NodeWent():
                return f"hears goodbye of {entry.node}: {entry.outcome}"
            case journal.NodeUnhealthy():
                return f"hears that {entry.node} is unhealthy: {entry.reason}"
            case journal.NodeParked():
                return f"parks {self._name(entry.incarnation)} for {entry.for_s:g} s: {entry.reason}"
            case journal.NodeUnparked():
                return f"ends the parking of {self._name(entry.incarnation)}"
            case journal.CyclePlaced():
                return f"places cycle {entry.cycle_id}: {entry.counts}; {entry.effect}"
            case journal.CycleCalled(nodes=()):
                return f"asks for a checkpoint: {entry.reason}"
            case journal.CycleCalled():
                return f"asks {', '.join(entry.nodes)} to go: {entry.reason}"
            case journal.WorkersEnded():
                return f"hears of a failure: {entry.failure}"
            case journal.CycleSettled():
                return f"settles cycle {entry.cycle_id}: {entry.first or 'no node is to blame'}"
            case journal.RecordRefused():
                return f"refuses a record: {entry.record.reason}"
            case journal.RunEnded():
                return f"closes the run: {entry.verdict}"
            case _:
                return None

    def _tell_news(self, node: Node, news: Place | Verdict | FtError) -> None:
        if isinstance(news, Place):
            text = f"trains in cycle {news.cycle_id} as rank {news.rank} of {news.world_size}, meets at "
            text += f"{news.master_addr}"
        elif isinstance(news, Verdict):
            text = f"leaves, the run is {news.kind}"
        else:
            text = f"stops: {news}"
        self.lines.append(f"{node.name}: {text}")

    def _tell_seats(self) -> None:
        seats = [f"{node.place.rank}={node.name}" for node in self.cluster.training if node.place]
        self.lines.append(f"seats: {' '.join(seats) or 'no node trains'}")


def blocks_of(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The commands (comments and all) and the expected lines of each block."""
    for block in text.strip("\n").split("\n\n"):
        head, found, tail = block.partition("\n----")
        assert found or all(line.startswith("#") for line in block.splitlines()), f"a block without ----:\n{block}"
        yield head.splitlines(), tail.strip("\n").splitlines()


def play(text: str) -> str:
    """The transcript of the scenario's commands."""
    stage = Stage()
    parts: list[str] = []
    for commands, _ in blocks_of(text):
        stage.lines.clear()
        for command in commands:
            if not command.startswith("#"):
                stage.perform(command)
        is_comment = all(command.startswith("#") for command in commands)
        parts.append("\n".join(commands if is_comment else [*commands, "----", *(stage.lines or ["(nothing)"])]))
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if MUST_REWRITE and played != written:
        path.write_text(played)
    assert played == path.read_text()


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6
