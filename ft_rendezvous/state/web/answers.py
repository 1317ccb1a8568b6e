"""Answers: bytes that are made once per change and sent to any number of clients.

All clients that asked before an answer was begun share it; clients that ask later share the next one. So a thousand
clients cost two encodings of a state, and no client gets an answer that is older than its request.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

PACKED_FROM_BYTES = 1_000
"""Smaller answers fit into one packet anyway."""

T = TypeVar("T")


class CachedBody:
    """A body, its tag, and the compressed body once a client wants it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        # Weak: it names the body, compressed or not.
        self.etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        self._packing: asyncio.Future[bytes] | None = None

    async def pack(self) -> bytes:
        """The body, compressed."""
        if self._packing is None:
            self._packing = asyncio.ensure_future(asyncio.to_thread(_pack, self.body))
        return await asyncio.shield(self._packing)


class AnswerCache(Generic[T]):
    """One kind of answer: the newest that was made, the one being made and the one to be made after it."""

    def __init__(self, make: Callable[[int], T], stamp: Callable[[int], Hashable]) -> None:
        """`make` makes it in a thread, as of a time in ns; answers with the same `stamp` are the same."""
        self._make = make
        self._stamp = stamp
        self._made: tuple[Hashable, T] | None = None
        self._making: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self, now_ns: int = 0) -> T:
        if self._made is not None and self._made[0] == self._stamp(now_ns):
            return self._made[1]
        if self._next is None:
            self._next = asyncio.create_task(self._make_next(self._making, now_ns))
        return await asyncio.shield(self._next)

    async def _make_next(self, before: asyncio.Task[T] | None, now_ns: int) -> T:
        if before is not None and not before.done():
            await asyncio.wait({before})
        self._making, self._next = self._next, None
        # Read before the state: a change meanwhile makes another stamp, and so another answer.
        stamp = self._stamp(now_ns)
        if self._made is None or self._made[0] != stamp:
            self._made = stamp, await asyncio.to_thread(self._make, now_ns)
        return self._made[1]


def _pack(body: bytes) -> bytes:
    # The fastest level: lists of nodes shrink to a tenth even so.
    return gzip.compress(body, compresslevel=1, mtime=0)
