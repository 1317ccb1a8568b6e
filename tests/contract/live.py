"""A live run in this process: a host on a real TCPStore, and nodes as an agent has them, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torch.distributed.elastic.agent.server import api as agent_api
from torch.distributed.elastic.utils import store as store_util

from ft_rendezvous.agent.agent_store import AgentStore
from ft_rendezvous.config.settings import NodeSettings, RunSettings, Settings, StateSettings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.serve import serve
from ft_rendezvous.node import session
from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.protocol.participant import Participant, Place
from ft_rendezvous.store.client import TcpStore, connect
from tests.contract.benches import LONG_S

T = TypeVar("T")


def run_settings(**changes: Any) -> RunSettings:
    """A run of two whose nodes are not declared dead because the machine is busy."""
    given = {"run_id": "live", "min_nodes": 2, "max_nodes": 4, "lease_s": 30.0, "beat_s": 0.5, **changes}
    return RunSettings(**given)


class LiveNode:
    """One agent's session; calls that wait run in a thread of their own."""

    def __init__(self, run: LiveRun, opened: session.Session) -> None:
        self._run = run
        self.session = opened
        self.link = opened.link
        self.place: Place | None = None

    @property
    def participant(self) -> Participant:
        """What only its link may touch. A test looks, and changes nothing."""
        return self.link._participant

    def ask(self) -> Future[Place | Verdict | Drained]:
        """Ask for a place, as `next_rendezvous()` does."""
        return self._run.do(self.link.next_place)

    def train(self, asked: Future[Place | Verdict | Drained]) -> Place:
        place = asked.result(LONG_S)
        assert isinstance(place, Place), f"the run is over: {place}"
        self.place = place
        return place

    @property
    def agent_store(self) -> AgentStore:
        assert self.place is not None
        return AgentStore(self.link, self.place)

    def finish(self) -> Future[None]:
        """Enter the exit barrier, as torch's agent does."""
        assert self.place is not None
        store, world_size = self.agent_store, self.place.world_size
        return self._run.do(lambda: store_util.barrier(store, world_size, agent_api._TERMINAL_STATE_SYNC_ID, 300))

    def leave(self, outcome: Outcome = Outcome.LEFT) -> None:
        self.link.leave(outcome, "")


class LiveRun:
    def __init__(self, settings: RunSettings, state: StateSettings | None = None) -> None:
        self.settings = settings
        self.entries: list[Entry] = []
        self.host: Host = serve(settings, 0, self.entries.append, state=state)
        self.port: int = self.host._served.port
        self.keys = self.host.coordinator.keys
        self.nodes: list[LiveNode] = []
        self._pool = ThreadPoolExecutor(16)

    def do(self, call: Callable[[], T]) -> Future[T]:
        return self._pool.submit(call)

    def node_settings(self, **changes: Any) -> Settings:
        return Settings(
            run=changes.pop("run", self.settings),
            node=NodeSettings(endpoint_host="127.0.0.1", endpoint_port=self.port, is_host=False, **changes),
        )

    def node(self, number: int, *, run: RunSettings | None = None, port: int | None = None, **info: Any) -> LiveNode:
        """Open a node's session; through another port than the store's own, if one is given."""
        known: dict[str, Any] = {
            "addr": "127.0.0.1",
            "pid": 100 + number,
            "role": "trainer",
            "local_world_size": 2,
        }
        settings = self.node_settings(run=run or self.settings)
        if port is not None:
            settings = replace(settings, node=replace(settings.node, endpoint_port=port))
        opened = session.open_session(settings, NodeInfo(**{**known, **info}))
        node = LiveNode(self, opened)
        self.nodes.append(node)
        return node

    def stranger(self) -> TcpStore:
        """A connection of somebody who keeps to no protocol."""
        return connect("127.0.0.1", self.port)

    def told(self, kind: type[T]) -> list[T]:
        return [entry for entry in list(self.entries) if isinstance(entry, kind)]

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait until something holds that no event announces."""
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.01)):
            if is_true():
                return
            pause.wait(0.01)
        raise AssertionError("it did not happen")

    def seal(self, *nodes: LiveNode) -> list[Place]:
        """Ask for all of them and wait until each has its rank."""
        asked = [node.ask() for node in nodes]
        return [node.train(future) for node, future in zip(nodes, asked, strict=True)]

    def finish(self, *nodes: LiveNode) -> Verdict:
        """All of them finish; wait until each has heard the verdict, and the host is done."""
        for future in [node.finish() for node in nodes]:
            future.result(LONG_S)
        verdicts = {str(node.link.verdict) for node in nodes}
        assert len(verdicts) == 1
        for node in self.nodes:
            node.leave(Outcome.SUCCEEDED)
        assert self.host.wait(LONG_S)
        assert self.host.verdict is not None
        return self.host.verdict

    def stop(self) -> None:
        for node in self.nodes:
            node.link.stop()
            node.session.bootstrap.release()
        self.host.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def live_run(state: StateSettings | None = None, **changes: Any) -> Iterator[LiveRun]:
    run = LiveRun(run_settings(**changes), state)
    try:
        yield run
    finally:
        run.stop()
