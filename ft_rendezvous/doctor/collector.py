"""The first node of a step collects the reports of the others, on a port that every node can compute.

The nodes do not use the endpoint: it may belong to a live run, or to a machine outside the step. The connection to the
first node is a useful test by itself, because the workers' own store also listens on such a port.

Every message is one line of JSON. The first node listens. Another node says hello, sends its report, and then answers
requests until End.
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
from ft_rendezvous.doctor.facts import (
    FACTS_VERSION,
    End,
    Hello,
    NodeAnswer,
    NodeFacts,
    NodeReport,
    NodeRequest,
    Step,
    Welcome,
)
from ft_rendezvous.doctor.node_actions import NodeActions
from ft_rendezvous.store import net

FIRST_PORT, PORT_COUNT = 20_000, 9_000
"""Below the ports that Linux gives to outgoing connections, and below the usual endpoints."""

CANDIDATE_PORTS = 4
MAX_LINE_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 3.0
RETRY_DELAY_S = 0.2

_encoder = msgspec.json.Encoder()
_requests: msgspec.json.Decoder[NodeRequest] = msgspec.json.Decoder(NodeRequest)
_answers: msgspec.json.Decoder[NodeAnswer] = msgspec.json.Decoder(NodeAnswer)
_hello = msgspec.json.Decoder(Hello)


def collector_ports(key: str, taken: int) -> list[int]:
    """The ports to try, the same in every process of a step. The port of the endpoint is never among them."""
    ports = (FIRST_PORT + zlib.crc32(f"{key}/{number}".encode()) % PORT_COUNT for number in range(2 * CANDIDATE_PORTS))
    return [port for port in dict.fromkeys(ports) if port != taken][:CANDIDATE_PORTS]


# --- the node that collects -------------------------------------------------------------------------


@dataclass(eq=False)
class ReportingNode:
    """A node that has reported to the first node."""

    facts: NodeFacts
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: NodeRequest, timeout_s: float) -> NodeAnswer | None:
        """Its answer; None if the node is gone or does not answer in time."""
        try:
            self.writer.write(_encoder.encode(request) + b"\n")
            await self.writer.drain()
            line = await asyncio.wait_for(self.reader.readline(), timeout_s)
            return _answers.decode(line)
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            return None

    async def dismiss(self, exit_code: int) -> None:
        with suppress(OSError):
            self.writer.write(_encoder.encode(End(exit_code=exit_code)) + b"\n")
            await self.writer.drain()
            self.writer.close()


@dataclass
class Collector:
    """The first node's side: accepts every node of this step once."""

    step: Step
    reporting: dict[int, ReportingNode] = field(default_factory=dict)
    other_versions: dict[int, Hello] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, taken: int) -> bool:
        """Listen on the first free port; False if no port is free."""
        net.raise_file_limit(self.step.tasks + 256)
        for port in collector_ports(self.step.key, taken):
            try:
                listener = net.listen(port)
            except OSError:
                continue
            listener.setblocking(False)
            self._server = await asyncio.start_server(self._receive, sock=listener, limit=MAX_LINE_BYTES)
            return True
        return False

    async def wait(self, deadline: float) -> None:
        """Wait until every other task has reported, or the deadline has passed."""
        while len(self.reporting) + len(self.other_versions) < self.step.tasks - 1:
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
            is_accepted = await self._accept(reader, writer)
        except (OSError, ValueError, msgspec.MsgspecError):
            is_accepted = False  # Another program, or a node that has ended.
        if not is_accepted:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        hello = _hello.decode(await reader.readline())
        if hello.key != self.step.key or not 0 < hello.task < self.step.tasks:
            return False
        if hello.v != FACTS_VERSION:
            self.other_versions[hello.task] = hello
            self._changed.set()
            writer.write(_encoder.encode(End(exit_code=1)) + b"\n")
            return False
        writer.write(_encoder.encode(Welcome(key=self.step.key)) + b"\n")
        await writer.drain()
        report = _answers.decode(await reader.readline())
        if not isinstance(report, NodeReport) or report.facts.task != hello.task or hello.task in self.reporting:
            return False
        self.reporting[hello.task] = ReportingNode(report.facts, reader, writer)
        self._changed.set()
        return True


# --- the nodes that report --------------------------------------------------------------------------


class NoCollector(Exception):
    """The first node cannot be reached, or has ended. The message says what was tried."""


def report_to_collector(
    facts: NodeFacts, step: Step, node: NodeActions, *, hosts: Sequence[str], taken: int, timeout_s: float
) -> int:
    """Report to the first node and do what it asks. Returns the exit code that it sends. Raises NoCollector."""
    deadline = time.monotonic() + timeout_s
    sock = _find_collector(facts, step, hosts, collector_ports(step.key, taken), deadline)
    with sock, sock.makefile("rwb") as file:
        try:
            _say(file, NodeReport(facts=facts))
            while True:
                sock.settimeout(timeout_s)
                request = _requests.decode(file.readline(MAX_LINE_BYTES))
                if isinstance(request, End):
                    return request.exit_code
                _say(file, node.do(request))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise NoCollector(f"the first node has ended, or does not answer any more ({error})") from error


def _find_collector(
    facts: NodeFacts, step: Step, hosts: Sequence[str], ports: Sequence[int], deadline: float
) -> socket.socket:
    hello = Hello(v=FACTS_VERSION, key=step.key, task=step.task, host=facts.host, version=__version__)
    tried: dict[str, str] = {}
    while True:
        for host in hosts:
            for port in ports:
                try:
                    return _connect(host, port, hello)
                except OSError as error:
                    tried[format_endpoint(host, port)] = error.strerror or str(error)
                except (ValueError, msgspec.MsgspecError):
                    tried[format_endpoint(host, port)] = "another program is there"
                if time.monotonic() >= deadline:
                    last = "; ".join(f"{where}: {why}" for where, why in list(tried.items())[:CANDIDATE_PORTS])
                    raise NoCollector(f"the first node could not be reached in time ({last})")
        time.sleep(RETRY_DELAY_S)


def _connect(host: str, port: int, hello: Hello) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    try:
        with sock.makefile("rwb") as file:
            _say(file, hello)
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                raise ConnectionResetError(None, "it closes the connection")
            welcome = _requests.decode(line)
        if isinstance(welcome, End):
            raise NoCollector("the first node has another version of ft-rendezvous: install the same everywhere")
        if not isinstance(welcome, Welcome) or welcome.key != hello.key:
            raise ValueError("not our step")
    except BaseException:
        sock.close()
        raise
    return sock


def _say(file: BufferedIOBase, message: NodeAnswer) -> None:
    file.write(_encoder.encode(message) + b"\n")
    file.flush()
