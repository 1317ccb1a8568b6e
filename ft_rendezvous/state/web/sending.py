"""How bytes are sent: in parts, with a limit on the memory that slow clients hold.

A body is one object for all clients that get it. A slow client keeps its body in memory until the end. Slow clients
that each began with another body could fill the memory: those with the oldest bodies are disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

SENT_PART_BYTES = 64 * 2**10
HELD_BYTES = 128 * 2**20
ABORT = "ft_rendezvous.abort"
"""The key in a request's scope for the function that ends its connection at once."""

Abort = Callable[[], None]


class BodiesInFlight:
    """The bodies that are being sent, oldest first, and the clients that get them."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[int, tuple[bytes, dict[object, Abort]]] = {}
        self.held_bytes = 0

    @contextmanager
    def hold(self, body: bytes, abort: Abort) -> Iterator[None]:
        """Count this body as long as it is being sent; `abort` is called when newer bodies need the room."""
        me = object()
        if id(body) not in self._held:
            self._held[id(body)] = body, {}
            self.held_bytes += len(body)
        self._held[id(body)][1][me] = abort
        self._make_room(body)
        try:
            yield
        finally:
            readers = self._held[id(body)][1]
            del readers[me]
            if not readers:
                del self._held[id(body)]
                self.held_bytes -= len(body)

    def _make_room(self, newest: bytes) -> None:
        excess = self.held_bytes - self._limit_bytes
        for body, readers in self._held.values():
            if excess <= 0 or body is newest:
                return
            excess -= len(body)
            for abort in readers.values():
                abort()


class BytesResponse(Response):
    """A body sent in parts, so that a client that does not read holds no copy of it."""

    def __init__(
        self,
        outflow: BodiesInFlight,
        body: bytes,
        media_type: str,
        status_code: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(body, status_code, headers, media_type)
        self._outflow = outflow
        self._whole = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] != "HEAD":
            with self._outflow.hold(self._whole, scope.get(ABORT, _stay)):
                await send_parts(send, self._whole)
        await send({"type": "http.response.body", "body": b""})


class FollowResponse(StreamingResponse):
    """A stream of server-sent events."""

    def __init__(self, request: Request, outflow: BodiesInFlight, frames: AsyncGenerator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._abort: Abort = request.scope.get(ABORT, _stay)
        self._outflow = outflow
        self._frames = frames

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames) as frames:
            async for chunk in frames:
                with self._outflow.hold(chunk, self._abort):
                    await send_parts(send, chunk)
        await send({"type": "http.response.body", "body": b""})


async def send_parts(send: Send, body: bytes) -> None:
    """Each part waits until the client has read most of the parts before. Other clients get their turn in between."""
    for start in range(0, len(body), SENT_PART_BYTES):
        await send({"type": "http.response.body", "body": body[start : start + SENT_PART_BYTES], "more_body": True})
        # `send` does not wait if the client reads fast, or if it is gone and the server does not know yet.
        await asyncio.sleep(0)


def _stay() -> None:
    """For a server that cannot end connections."""
