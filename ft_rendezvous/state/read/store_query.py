"""Queries for the state through the run's own store: `ftr status HOST:PORT` needs no other port and no file.

    the client  count += 1 -> n; set ask/n to the newest event it knows; ring the bell; wait for answer/n
    the host    blocks on the bell, in a thread and on a connection of its own; answers every query it finds

The coordinator has no part in it. An answer is compressed and in parts, because a store hangs up on large values. The
client deletes it, or later the host.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Add, Check, Delete, Get, Set, perform_move
from ft_rendezvous.state.model.events import StateTold, decode_line
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.store.raw_client import Found, StoreSocket, probe

log = logging.getLogger("ft_rendezvous")

VALUE_PART_BYTES = 4 << 20
MAX_OPEN_QUERIES = 100
"""How many queries are looked for at once: any program that reaches the port can raise the count."""
REST_FACTOR = 3
"""The host rests for this many times as long as an answer took: with 10,000 nodes, an answer holds the coordinator's
interpreter for 40 ms."""
MAX_REST_DELAY_S = 2.0
ANSWER_KEPT_S = 30.0
"""How long an answer waits for its client."""
QUERY_TIMEOUT_S = 10.0
Look = Callable[[int], tuple[bytes, list[bytes]]]
"""The state as a line, and the lines of later events than the one given."""


class Query(msgspec.Struct, frozen=True):
    after: int
    """The newest event that is known already."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """A run at one moment."""

    state: RunState
    lines: list[bytes]
    """Later events than the one asked about, as far as they are kept."""


class QueryServer:
    """The host's side."""

    def __init__(self, look: Look, keys: Keys, port: int) -> None:
        self._look, self._keys = look, keys
        self._store = StoreSocket("localhost", port)
        self._closed = threading.Event()
        self._answered = 0
        self._open: list[int] = []
        """Numbers that were counted and have no query yet."""
        self._given: list[tuple[float, list[str]]] = []
        """Since when which keys hold answers."""
        self._thread = threading.Thread(target=self._run, name="ft-query-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._store.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._store.wait_for(self._keys.window_bell)
                self._store.perform(Delete(self._keys.window_bell))
                self._answer_all()
        except StoreUnavailable:
            if not self._closed.is_set():
                log.warning(
                    "the connection for queries is lost: ftr status and ftr events cannot read this run any more"
                )

    def _answer_all(self) -> None:
        count = self._store.perform(Add(self._keys.window_count, 0))
        self._open += range(max(self._answered + 1, count + 1 - MAX_OPEN_QUERIES), count + 1)
        self._answered = count
        # The host does not wait for a client that died between counting and asking.
        self._open = [number for number in self._open[-MAX_OPEN_QUERIES:] if not self._answer(number)]
        now = time.monotonic()
        while self._given and self._given[0][0] < now - ANSWER_KEPT_S:
            for key in self._given.pop(0)[1]:
                self._store.perform(Delete(key))

    def _answer(self, number: int) -> bool:
        """False if nothing is asked under this number yet."""
        key = self._keys.window_ask(number)
        began = time.monotonic()
        if self._closed.is_set() or not self._store.perform(Check([key])):
            return False
        after = _decode_ask(self._store.perform(Get(key))).after
        self._store.perform(Delete(key))
        state, lines = self._look(after)
        parts = _split(zlib.compress(state + b"".join(lines), 1))
        keys = [self._keys.window_answer(number, part) for part in range(len(parts))]
        # The first part says that all are there.
        for name, part in reversed(list(zip(keys, parts, strict=True))):
            self._store.perform(Set(name, len(parts).to_bytes(2, "big") + part))
        self._given.append((time.monotonic(), keys))
        self._closed.wait(min(REST_FACTOR * (time.monotonic() - began), MAX_REST_DELAY_S))
        return True


class QueryClient:
    """The client's side. Raises ConfigError if there is no run at the endpoint."""

    def __init__(self, endpoint: str) -> None:
        host, port = parse_endpoint(endpoint)
        found = probe(host, port)
        if found is not Found.STORE:
            raise ConfigError(f"no run at {endpoint}: {found}")
        self._store = StoreSocket(host, port, QUERY_TIMEOUT_S)
        head = perform_move(self._store, moves.find_head())
        if head is None:
            raise ConfigError(f"no run at {endpoint}: a TCPStore of another program is there")
        self._keys = Keys(head.epoch)

    def look(self, after: int) -> QueryAnswer:
        """The run as it is now. Raises StoreUnavailable if its host does not answer, or is gone."""
        keys = self._keys
        number = self._store.perform(Add(keys.window_count, 1))
        self._store.perform(Set(keys.window_ask(number), msgspec.json.encode(Query(after))))
        self._store.perform(Set(keys.window_bell, b"1"))
        first = self._store.perform(Get(keys.window_answer(number, 0)))
        names = [keys.window_answer(number, part) for part in range(int.from_bytes(first[:2], "big"))]
        parts = [first, *(self._store.perform(Get(name)) for name in names[1:])]
        for name in names:
            self._store.perform(Delete(name))
        state, *lines = zlib.decompress(b"".join(part[2:] for part in parts)).splitlines(keepends=True)
        event = decode_line(state).event
        assert isinstance(event, StateTold)
        return QueryAnswer(event.state, lines)


def _decode_ask(data: bytes) -> Query:
    try:
        return msgspec.json.decode(data, type=Query)
    except msgspec.MsgspecError:
        return Query(0)  # Any program that reaches the port can write anything; it gets an answer, and that is all.


def _split(data: bytes) -> list[bytes]:
    return [data[start : start + VALUE_PART_BYTES] for start in range(0, len(data), VALUE_PART_BYTES)]
