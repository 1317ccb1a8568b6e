"""The lighthouse's own process: torchft's server on a private port, and a forwarder from the public port to it.

An isolated interpreter runs this file by its path. It loads torchft's extension alone: to import torchft would import
torch, and workers would wait for seconds. The forwarder is there for two reasons:

- A new lighthouse counts its quorums from 1 again. Managers remember the ids of earlier quorums, and the stores of
  groups hold what was written under them. So this process raises the ids first, and then lets managers in.
- A group that is stopped while it waits for a quorum stays a candidate, and becomes a member as soon as it goes on,
  long after its place was given away. The lighthouse never ends such a request. The forwarder hangs up on a manager
  that is silent, although it should send heartbeats. What is left of its request ends with the connection.

It tells its host on standard output: `ready`, `quorum ID` when the id has changed, `failed REASON`.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import json
import os
import re
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

WATCH_INTERVAL_S = 0.5
STATUS_TIMEOUT_S = 10.0
"""A lighthouse that does not show its status for this long hangs. Another one is started."""
RAISE_TIMEOUT = timedelta(seconds=30)

_QUORUM_ID = re.compile(rb"Current quorum_id: (\d+)")


def load_extension(path: str) -> Any:
    """Torchft's extension module, without the package around it."""
    name = "_torchft"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "a loader is given"
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def raise_quorum_ids(torchft: Any, port: int, replicas: int, first_id: int) -> None:
    """Form quorums of stand-in groups until the next id is at least `first_id`.

    A member that reports a failed commit makes every quorum a new one. The stand-ins count as alive for one heartbeat
    timeout more, so the first quorum of real groups waits for that long.
    """
    servers = [
        torchft.ManagerServer(
            replica_id=f"ft-stand-in-{number}",
            lighthouse_addr=f"http://127.0.0.1:{port}",
            hostname="127.0.0.1",
            bind="127.0.0.1:0",
            store_addr="127.0.0.1:1",
            world_size=1,
            heartbeat_interval=timedelta(seconds=0.1),
            connect_timeout=RAISE_TIMEOUT,
            quorum_retries=0,
        )
        for number in range(replicas)
    ]
    reached = [0] * replicas

    def take_part(number: int) -> None:
        client = torchft.ManagerClient(servers[number].address(), connect_timeout=RAISE_TIMEOUT)
        while reached[number] < first_id - 1:
            reached[number] = client._quorum(
                group_rank=0,
                step=1,
                checkpoint_metadata="",
                shrink_only=False,
                timeout=RAISE_TIMEOUT,
                commit_failures=1,
                init_sync=False,
            ).quorum_id

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.shutdown()
    if min(reached) < first_id - 1:
        raise RuntimeError(f"the quorum ids could not be raised to {first_id}")


class _Side(asyncio.Protocol):
    """One side of a forwarded connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self.heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class Forwarder:
    """Forwards connections to a port of this machine, and hangs up on clients that are silent."""

    def __init__(self, port: int, silence_timeout_s: float) -> None:
        self._port = port
        self._silence_timeout_s = silence_timeout_s
        self._clients: set[_Client] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_at = time.monotonic()

    def accept(self) -> asyncio.Protocol:
        return _Client(self)

    def began(self, client: _Client) -> None:
        self._clients.add(client)
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, client: _Client) -> None:
        self._clients.discard(client)

    async def _connect(self, client: _Client) -> None:
        assert client.transport is not None
        try:
            _, server = await asyncio.get_running_loop().create_connection(_Side, "127.0.0.1", self._port)
        except OSError:
            client.transport.abort()
            return
        client.other, server.other = server, client
        if client.transport.is_closing():
            assert server.transport is not None
            server.transport.abort()
        else:
            client.transport.resume_reading()

    def hang_up_on_silent(self) -> None:
        """Call it after each interval. If this process stood still itself, no client is to blame."""
        now = time.monotonic()
        if now - self._looked_at > WATCH_INTERVAL_S + self._silence_timeout_s / 2:
            for client in self._clients:
                client.heard_at = now
        self._looked_at = now
        for client in [each for each in self._clients if now - each.heard_at > self._silence_timeout_s]:
            for side in (client, client.other):
                if side is not None and side.transport is not None:
                    side.transport.abort()


class _Client(_Side):
    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._forwarder.began(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._forwarder.ended(self)


async def read_quorum_id(port: int) -> int:
    """The id of the last quorum, from the lighthouse's own page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = _QUORUM_ID.search(await reader.read())
    finally:
        writer.close()
    if found is None:
        raise RuntimeError("the status of the lighthouse names no quorum id")
    return int(found[1])


def say(line: str) -> None:
    print(line, flush=True)


async def serve(public: socket.socket, private_port: int, host_pid: int, silence_timeout_s: float) -> None:
    """Forward, until the host has ended or the lighthouse hangs."""
    forwarder = Forwarder(private_port, silence_timeout_s)
    server = await asyncio.get_running_loop().create_server(forwarder.accept, sock=public)
    say("ready")
    told_id = 0
    async with server:
        while os.getppid() == host_pid:
            quorum_id = await asyncio.wait_for(read_quorum_id(private_port), STATUS_TIMEOUT_S)
            if quorum_id != told_id:
                told_id = quorum_id
                say(f"quorum {quorum_id}")
            forwarder.hang_up_on_silent()
            await asyncio.sleep(WATCH_INTERVAL_S)


def main(config: dict[str, Any]) -> None:
    torchft = load_extension(config["extension"])
    lighthouse = torchft.LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=config["min_replicas"],
        join_timeout_ms=config["join_timeout_ms"],
        quorum_tick_ms=config["tick_ms"],
        heartbeat_timeout_ms=config["heartbeat_timeout_ms"],
    )
    port = int(lighthouse.address().rpartition(":")[2])
    if config["first_quorum_id"] > 1:
        raise_quorum_ids(torchft, port, config["min_replicas"], config["first_quorum_id"])
    public = socket.socket(fileno=config["listen_fd"])
    asyncio.run(serve(public, port, config["host_pid"], config["silence_timeout_s"]))


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
        code = 0
    except Exception as error:  # The end of this process: its host logs why, and starts another one.
        say(f"failed {type(error).__name__}: {error}")
        code = 1
    os._exit(code)  # The threads of torchft's server do not end by themselves.
