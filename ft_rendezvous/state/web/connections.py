"""Connections: a client that hangs is disconnected.

uvicorn closes an idle connection after its first answer, and no other. Here every connection has a condition, and
every condition in which the connection only costs room has a limit (docs/decisions/uvicorn.md):

    waiting   the client has sent no whole request yet, or no further one
    stuck     the client does not read what was sent
    closing   the server has closed the connection, and the client does not read that either
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar

import h11
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ft_rendezvous.state.web.routes import JSON, Problem
from ft_rendezvous.state.web.sending import ABORT


class Condition(StrEnum):
    BUSY = "busy"
    WAITING = "waiting"
    STUCK = "stuck"
    CLOSING = "closing"


_NO_HTTP = msgspec.json.encode(
    Problem(error="this is no HTTP request, or its head is too large", next="send a GET with fewer or shorter headers")
)
CONDITION_TIMEOUT_S = {Condition.WAITING: 10.0, Condition.STUCK: 20.0, Condition.CLOSING: 5.0}


class Connection(H11Protocol):
    """One client's connection, its condition, and since when it has that condition."""

    limit: ClassVar[int]
    """How many there may be at once."""
    since: float
    seen: tuple[Condition, int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._moves = 0
        self.is_aborted = False
        self._inner = self.app
        self.app = self._run

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._moves += 1
        scope[ABORT] = self.abort
        await self._inner(scope, receive, send)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since, self.seen = self.loop.time(), (Condition.WAITING, 0)
        others = [each for each in self.connections if each is not self and not each.is_aborted]  # type: ignore[union-attr]
        if len(others) >= self.limit:
            make_room(self, others)  # type: ignore[arg-type]

    def resume_writing(self) -> None:
        self._moves += 1
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """The client sent no HTTP. If an answer is under way, no other answer can be sent."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()
            return
        headers = [("content-type", JSON), ("content-length", str(len(_NO_HTTP))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=_NO_HTTP), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def condition(self) -> Condition:
        if self.transport.is_closing():
            return Condition.CLOSING
        if self.flow.write_paused:
            return Condition.STUCK
        is_busy = self.cycle is not None and not self.cycle.response_complete
        return Condition.BUSY if is_busy else Condition.WAITING

    def look(self, now: float) -> None:
        """End the connection if it has been in one condition for too long, without any progress."""
        seen = self.condition, self._moves
        if seen != self.seen:
            self.since, self.seen = now, seen
        elif now - self.since > CONDITION_TIMEOUT_S.get(self.condition, float("inf")):
            self.abort()

    def abort(self) -> None:
        """End it at once; unsent bytes are dropped."""
        self.is_aborted = True
        self.transport.abort()


def make_room(newcomer: Connection, others: Iterable[Connection]) -> None:
    """End the connection that has waited longest; if none of them waits, the new one."""
    waiting = [each for each in others if each.condition is not Condition.BUSY]
    min(waiting, key=lambda each: each.since, default=newcomer).abort()
