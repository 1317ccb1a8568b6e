"""Hostile readers of a state server, each bad in its own way.

`python -m tests.state.web.hostile PORT SECONDS [CLIENTS [TOKEN]]` says `ready` once all have been at the server, goes
on for that many seconds, and then tells as JSON how often each kind came and how often it was answered. It ends by
itself, whatever the server does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

API = "/api/ft/v1"
BREATH_S = 0.05
"""Between two connections of one client that were refused."""
CONNECT_S = 60.0
"""Until all have been at the server; fails after that."""
NEVER_S = 3600.0


@dataclass
class Target:
    port: int
    run: str
    token: str | None = None
    came: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)

    def head(self, path: str, *more: str) -> bytes:
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *more]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Behaviour = Callable[[Target, Reader, Writer], Awaitable[None]]


async def hang_in_the_middle(_: Target, reader: Reader, writer: Writer) -> None:
    """Half a request, and no more."""
    writer.write(f"GET {API}/runs HTTP/1.1\r\nHost: local".encode())
    await reader.read()


async def drip(_: Target, reader: Reader, writer: Writer) -> None:
    """A request that never ends, byte by byte."""
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.5)


async def follow_without_reading(target: Target, _: Reader, writer: Writer) -> None:
    writer.write(target.head(f"{API}/runs/{target.run}/events"))
    await _read_nothing(writer)


async def be_told_without_reading(target: Target, _: Reader, writer: Writer) -> None:
    """A position that nobody can resume from: the whole state is sent, to nobody."""
    writer.write(target.head(f"{API}/runs/{target.run}/events?after=999999999"))
    await _read_nothing(writer)


async def ask_for_much_without_reading(target: Target, _: Reader, writer: Writer) -> None:
    writer.write(target.head(f"{API}/runs/{target.run}/nodes") * 20)
    await _read_nothing(writer)


async def flood(target: Target, reader: Reader, writer: Writer) -> None:
    """As many requests as are answered, each read as fast as it can be."""
    for path in ("/runs", f"/runs/{target.run}", f"/runs/{target.run}/cycles", f"/runs/{target.run}/nodes") * 100:
        writer.write(target.head(API + path))
        await _read_answer(reader)
        target.answered["flood"] += 1


async def send_huge_headers(target: Target, reader: Reader, writer: Writer) -> None:
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Large: " + b"x" * 1_000_000)
    if b" 400 " in await reader.readline():
        target.answered["send_huge_headers"] += 1


async def send_a_body(target: Target, reader: Reader, writer: Writer) -> None:
    writer.write(b"POST /api/ft/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
    for _ in range(100):
        writer.write(b"x" * 100_000)
        await writer.drain()
    if b" 405 " in await reader.readline():
        target.answered["send_a_body"] += 1


async def talk_nonsense(target: Target, reader: Reader, writer: Writer) -> None:
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
    if b" 400 " in await reader.readline():
        target.answered["talk_nonsense"] += 1


async def come_and_go(target: Target, _: Reader, writer: Writer) -> None:
    """Gone before the answer is there."""
    writer.write(target.head(f"{API}/runs/{target.run}/events"))
    await writer.drain()
    writer.transport.abort()


BEHAVIOURS: tuple[Behaviour, ...] = (
    hang_in_the_middle,
    drip,
    follow_without_reading,
    be_told_without_reading,
    ask_for_much_without_reading,
    flood,
    send_huge_headers,
    send_a_body,
    talk_nonsense,
    come_and_go,
)


async def attack(target: Target, clients: int, seconds: float, on_ready: Callable[[], None]) -> None:
    """All of them at once, for so long."""
    came = asyncio.Semaphore(0)
    tasks = [
        asyncio.create_task(_keep_on(target, BEHAVIOURS[number % len(BEHAVIOURS)], came)) for number in range(clients)
    ]
    try:
        async with asyncio.timeout(CONNECT_S):
            for _ in range(clients):
                await came.acquire()
        on_ready()
        await asyncio.sleep(seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_on(target: Target, behave: Behaviour, came: asyncio.Semaphore) -> None:
    is_first = True
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            target.came[behave.__name__] += 1
            if is_first:
                is_first = False
                came.release()
            try:
                await behave(target, reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(BREATH_S)


async def _read_nothing(writer: Writer) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await writer.drain()
    await asyncio.sleep(NEVER_S)


async def _read_answer(reader: Reader) -> None:
    length = 0
    while (line := (await reader.readuntil(b"\r\n")).strip().lower()) != b"":
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    await reader.readexactly(length)


def main(arguments: list[str]) -> None:
    port, seconds = int(arguments[0]), float(arguments[1])
    clients = int(arguments[2]) if len(arguments) > 2 else 200
    token = arguments[3] if len(arguments) > 3 else None
    target = Target(port, asyncio.run(_find_run(port, token)), token)
    asyncio.run(attack(target, clients, seconds, lambda: print("ready", flush=True)))
    print(json.dumps({"came": target.came, "answered": target.answered}), flush=True)


async def _find_run(port: int, token: str | None) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(Target(port, "", token).head(f"{API}/runs", "Connection: close"))
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return str(json.loads(body)[0]["id"])


if __name__ == "__main__":
    main(sys.argv[1:])
