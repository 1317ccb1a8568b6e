"""200 hostile readers: what they take is bounded, and an honest one is still answered."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count

import httpx
import pytest

from benchmarks.state import EPOCH, large_run, look
from ft_rendezvous.state.web.sending import BodiesInFlight
from tests.state.web.hostile import BEHAVIOURS
from tests.state.web.servers import API, ROOT, ServerProcess, client_of, live_run_of, server_process, wait_until

NODES = 3_000
CLIENTS = 200
SECONDS = 8.0
MEMORY_BYTES = 300 * 2**20
"""What may be held for slow readers, and what two hundred connections and the interpreter take."""
PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with server_process() as process:
        process.feed(*large_run(NODES))
        yield process


def test_two_hundred_hostile_readers_get_neither_the_memory_nor_the_time(server: ServerProcess) -> None:
    numbers = count(sum(1 for _ in large_run(NODES)) + 1)
    client = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE_S, trust_env=False)
    wait_until(lambda: len(client.get(f"{API}/runs").json()) == 1)
    client.get(f"{API}/runs/{EPOCH}/nodes")
    before_bytes, before_files = server.memory_bytes, server.files
    command = [sys.executable, "-m", "tests.state.web.hostile", str(server.port), str(SECONDS), str(CLIENTS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as attackers:
        assert attackers.stdout is not None
        assert attackers.stdout.readline() == b"ready\n"
        peak_bytes, took_s = 0, []
        while attackers.poll() is None:
            server.feed(look(next(numbers)))
            began = time.monotonic()
            # A connection of its own each time, as a probe's is: the door must still be open.
            health = httpx.get(f"http://127.0.0.1:{server.port}/healthz", timeout=PATIENCE_S, trust_env=False)
            assert health.json()["missed"] == 0
            took_s.append(time.monotonic() - began)
            peak_bytes = max(peak_bytes, server.memory_bytes)
            time.sleep(0.05)
        told = json.loads(attackers.stdout.read())
    print(
        f"{len(took_s)} answers, slowest {max(took_s):.2f} s, median {sorted(took_s)[len(took_s) // 2]:.3f} s;"
        f" memory {before_bytes / 2**20:.0f} MB, at most {peak_bytes / 2**20:.0f} MB; {told}"
    )
    assert set(told["came"]) == {behave.__name__ for behave in BEHAVIOURS}
    assert told["answered"]["flood"] > 0
    assert peak_bytes < before_bytes + MEMORY_BYTES
    newest = next(numbers) - 1
    wait_until(lambda: client.get(f"{API}/runs").json()[0]["event_id"] == newest)
    wait_until(lambda: server.files <= before_files + 5)
    client.close()


def hang(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.sendall(sent)
    return connection


def is_let_go(connection: socket.socket) -> bool:
    """Whether the server has ended this connection; what it had sent is read and forgotten."""
    try:
        while connection.recv(2**20):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_who_sends_no_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.connections.CONDITION_TIMEOUT_S", {"waiting": 0.5})
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    with client_of(live_run_of(large_run(1))) as client:
        port = client.base_url.port or 0
        for sent in (b"", b"GET /heal", head, head + b"\r\n" + head):
            with hang(port, sent) as connection:
                assert is_let_go(connection)
        assert client.get("/healthz").status_code


def test_who_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.connections.CONDITION_TIMEOUT_S", {"stuck": 0.5})
    live_run = live_run_of(large_run(20_000), ring_lines=10)
    with client_of(live_run) as client:
        request = f"GET {API}/runs/{EPOCH}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with hang(client.base_url.port or 0, request):
            wait_until(lambda: client.get("/healthz").json()["followers"] == 1)
            wait_until(lambda: client.get("/healthz").json()["followers"] == 0)


def test_who_comes_when_all_places_are_taken_takes_that_of_who_waited_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.serving.MAX_CONNECTIONS", 10)
    with client_of(live_run_of(large_run(1))) as client:
        port = client.base_url.port or 0
        hanging = [hang(port, b"GET /") for _ in range(50)]
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}{API}/runs", trust_env=False).status_code == 200
        assert is_let_go(hanging[0])
        for each in hanging:
            each.close()


def test_followers_that_are_all_busy_leave_no_place_but_are_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.serving.MAX_CONNECTIONS", 4)
    with client_of(live_run_of(large_run(1))) as client:
        port = client.base_url.port or 0
        client.get("/healthz")
        request = f"GET {API}/runs/{EPOCH}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        following = [hang(port, request) for _ in range(3)]
        wait_until(lambda: client.get("/healthz").json()["followers"] == 3)
        following += [hang(port, request)]
        for each in following[:4]:
            assert b"200 OK" in each.recv(100)
        for each in following:
            each.close()


def test_bodies_held_for_slow_readers_are_bounded_and_the_oldest_go_first() -> None:
    outflow, ended = BodiesInFlight(limit_bytes=100), []
    bodies = [bytes([number]) * 40 for number in range(4)]

    async def send(number: int, is_over: asyncio.Event) -> None:
        def end() -> None:
            ended.append(number)
            is_over.set()

        with outflow.hold(bodies[number], end):
            await is_over.wait()

    async def act() -> None:
        events = [asyncio.Event() for _ in bodies]
        tasks = []
        for number, event in enumerate(events):
            tasks.append(asyncio.create_task(send(number, event)))
            tasks.append(asyncio.create_task(send(number, event)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert outflow.held_bytes <= 120
        for event in events:
            event.set()
        await asyncio.gather(*tasks)

    asyncio.run(act())
    assert sorted(set(ended)) == [0, 1]
    assert outflow.held_bytes == 0
