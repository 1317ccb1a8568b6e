"""Where the doctor's processes meet: the first node of the step, on a port that all of them can work out.

Not at the endpoint, which may be a live run's, or a machine on which nobody of us is. The way there is worth trying
anyhow: the workers' own store listens on such a port too, of any node.

One line of JSON per message. The first node listens; a node says hello, reports, then does what it is asked until End.
"""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase

import msgspec

from ft_rendezvous import __version__
from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.doctor.facts import FORMAT, Answer, End, Hello, NodeFacts, Report, Request, Step, Welcome
from ft_rendezvous.doctor.node import Node
from ft_rendezvous.store import net

FIRST_PORT, PORTS = 20_000, 9_000
"""Below those that Linux gives to outgoing connections, and below the usual endpoints."""

CANDIDATES = 4
LONGEST_LINE = 1 << 20
CONNECT_S = 3.0
PAUSE_S = 0.2

_encoder = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_hello = msgspec.json.Decoder(Hello)


def meeting_ports(key: str, taken: int) -> list[int]:
    """Ports that every process of a step arrives at by itself; never the endpoint's."""
    ports = (FIRST_PORT + zlib.crc32(f"{key}/{number}".encode()) % PORTS for number in range(2 * CANDIDATES))
    return [port for port in dict.fromkeys(ports) if port != taken][:CANDIDATES]


# --- the node that collects -------------------------------------------------------------------------


@dataclass(eq=False)
class Visitor:
    """A node that has come to the first one."""

    facts: NodeFacts
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: Request, patience_s: float) -> Answer | None:
        """Its answer; None if it is gone, or does not come in time."""
        try:
            self.writer.write(_encoder.encode(request) + b"\n")
            await self.writer.drain()
            line = await asyncio.wait_for(self.reader.readline(), patience_s)
            return _answers.decode(line)
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            return None

    async def dismiss(self, exit_code: int) -> None:
        with suppress(OSError):
            self.writer.write(_encoder.encode(End(exit_code=exit_code)) + b"\n")
            await self.writer.drain()
            self.writer.close()


@dataclass
class Reception:
    """The first node's door: lets in the nodes of this step, each once."""

    step: Step
    visitors: dict[int, Visitor] = field(default_factory=dict)
    misfits: dict[int, Hello] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, taken: int) -> bool:
        """Listen on the first port that is free; False if none is."""
        net.raise_file_limit(self.step.tasks + 256)
        for port in meeting_ports(self.step.key, taken):
            try:
                listener = net.listen(port)
            except OSError:
                continue
            listener.setblocking(False)
            self._server = await asyncio.start_server(self._receive, sock=listener, limit=LONGEST_LINE)
            return True
        return False

    async def wait(self, deadline: float) -> None:
        """Until every other task has come, or it is too late."""
        while len(self.visitors) + len(self.misfits) < self.step.tasks - 1:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except TimeoutError:
                return
            self._changed.clear()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            is_in = await self._let_in(reader, writer)
        except (OSError, ValueError, msgspec.MsgspecError):
            is_in = False  # Somebody else's program, or a node that went.
        if not is_in:
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        hello = _hello.decode(await reader.readline())
        if hello.key != self.step.key or not 0 < hello.task < self.step.tasks:
            return False
        if hello.v != FORMAT:
            self.misfits[hello.task] = hello
            self._changed.set()
            writer.write(_encoder.encode(End(exit_code=1)) + b"\n")
            return False
        writer.write(_encoder.encode(Welcome(key=self.step.key)) + b"\n")
        await writer.drain()
        report = _answers.decode(await reader.readline())
        if not isinstance(report, Report) or report.facts.task != hello.task or hello.task in self.visitors:
            return False
        self.visitors[hello.task] = Visitor(report.facts, reader, writer)
        self._changed.set()
        return True


# --- the nodes that report --------------------------------------------------------------------------


class NobodyThere(Exception):
    """The first node cannot be reached, or has gone; the message says what was tried."""


def visit(facts: NodeFacts, step: Step, node: Node, *, hosts: Sequence[str], taken: int, patience_s: float) -> int:
    """Report to the first node and do what it asks. Returns the exit code that it tells. Raises NobodyThere."""
    deadline = time.monotonic() + patience_s
    sock = _find_reception(facts, step, hosts, meeting_ports(step.key, taken), deadline)
    with sock, sock.makefile("rwb") as file:
        try:
            _say(file, Report(facts=facts))
            while True:
                sock.settimeout(patience_s)
                request = _requests.decode(file.readline(LONGEST_LINE))
                if isinstance(request, End):
                    return request.exit_code
                _say(file, node.do(request))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise NobodyThere(f"the first node has gone, or says nothing any more ({error})") from error


def _find_reception(
    facts: NodeFacts, step: Step, hosts: Sequence[str], ports: Sequence[int], deadline: float
) -> socket.socket:
    hello = Hello(v=FORMAT, key=step.key, task=step.task, host=facts.host, version=__version__)
    tried: dict[str, str] = {}
    while True:
        for host in hosts:
            for port in ports:
                try:
                    return _enter(host, port, hello)
                except OSError as error:
                    tried[format_endpoint(host, port)] = error.strerror or str(error)
                except (ValueError, msgspec.MsgspecError):
                    tried[format_endpoint(host, port)] = "another program is there"
                if time.monotonic() >= deadline:
                    last = "; ".join(f"{where}: {why}" for where, why in list(tried.items())[:CANDIDATES])
                    raise NobodyThere(f"the first node is not reached within the time ({last})")
        time.sleep(PAUSE_S)


def _enter(host: str, port: int, hello: Hello) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=CONNECT_S)
    try:
        with sock.makefile("rwb") as file:
            _say(file, hello)
            line = file.readline(LONGEST_LINE)
            if not line:
                raise ConnectionResetError(None, "it hangs up")
            welcome = _requests.decode(line)
        if isinstance(welcome, End):
            raise NobodyThere("the first node has another version of ft-rendezvous: install the same everywhere")
        if not isinstance(welcome, Welcome) or welcome.key != hello.key:
            raise ValueError("not our step")
    except BaseException:
        sock.close()
        raise
    return sock


def _say(file: BufferedIOBase, message: Answer) -> None:
    file.write(_encoder.encode(message) + b"\n")
    file.flush()
