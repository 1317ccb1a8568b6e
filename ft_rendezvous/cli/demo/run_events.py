"""The events of the demo's run, read from its state_dir while they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ft_rendezvous.errors import StateUnavailable
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import Event
from ft_rendezvous.state.model.records import Node
from ft_rendezvous.state.model.view import view_nodes
from ft_rendezvous.state.model.wording import describe
from ft_rendezvous.state.read.log_reader import EventLogReader
from ft_rendezvous.state.record.folders import choose_run

QUIET_EVENTS = (journal.Looked, journal.CyclePlaced)
"""Events that a demo does not show."""


class RunEvents:
    """Follows one run. Before the store host has written its first event, there is nothing."""

    def __init__(self, state_dir: Path) -> None:
        self.nodes: dict[str, Node] = {}
        """The nodes of the run, by the name that the demo gives them."""
        self._state_dir = state_dir
        self._reader: EventLogReader | None = None

    def read_new(self) -> Iterator[Event]:
        """The events since the last call."""
        if self._reader is None:
            try:
                self._reader = EventLogReader(choose_run(self._state_dir, None).path)
            except StateUnavailable:
                return
        for entry in self._reader.read():
            self.nodes = {f"node-{node.infra_rank}": node for node in view_nodes(self._reader.state)}
            yield entry.event

    def describe(self, event: Event) -> str:
        """The event in one sentence with short names; empty if the demo does not show it."""
        if isinstance(event.event, QUIET_EVENTS):
            return ""
        names = {node.incarnation: name for name, node in self.nodes.items()}
        sentence = describe(event, names)
        if isinstance(event.event, journal.CycleSealed):
            ranks = event.event.placement.ranks
            sentence += "; " + ", ".join(f"{names[each]} has rank {rank}" for rank, each in enumerate(ranks))
        for name, node in self.nodes.items():
            sentence = sentence.replace(node.name, name)
        return sentence

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
