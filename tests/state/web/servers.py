"""State servers for tests: in a thread, whose live_run the test holds, or in a process of its own.

`python -m tests.state.web.servers [TOKEN]` takes events from its standard input, and says on which port it serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from ft_rendezvous.state.model.events import decode_line
from ft_rendezvous.state.web.app import make_app
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.serving import Serving, serve

ROOT = Path(__file__).parents[3]
API = "/api/ft/v1"


@contextmanager
def serving(
    live_run: LiveRun, token: str | None = None, clock_ns: Callable[[], int] = time.time_ns, addr: str = "127.0.0.1"
) -> Iterator[Serving]:
    ready: list[Serving] = []
    is_ready = threading.Event()

    def tell(server: Serving) -> None:
        ready.append(server)
        is_ready.set()

    thread = threading.Thread(target=serve, args=(make_app(live_run, token, clock_ns), addr, 0, tell))
    thread.start()
    assert is_ready.wait(30)
    try:
        yield ready[0]
    finally:
        ready[0].stop()
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def client_of(
    live_run: LiveRun, token: str | None = None, clock_ns: Callable[[], int] = time.time_ns
) -> Iterator[httpx.Client]:
    """A real client of a real server."""
    with serving(live_run, token, clock_ns) as server, make_client(server.port) as client:
        yield client


def make_client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)


def live_run_of(lines: Iterable[bytes], **bounds: int) -> LiveRun:
    live_run = LiveRun(**bounds)
    feed(live_run, *lines)
    return live_run


def feed(live_run: LiveRun, *lines: bytes) -> None:
    """As the keeper does it."""
    for line in lines:
        live_run.take(decode_line(line), line)


class ServerProcess:
    """A server on its own, fed with lines."""

    def __init__(self, token: str | None = None) -> None:
        command = [sys.executable, "-m", __name__, *([token] if token else [])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def feed(self, *lines: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(lines))
        self._process.stdin.flush()

    @property
    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def end(self) -> int:
        """Its standard input ends, and so does it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(30)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()


@contextmanager
def server_process(token: str | None = None) -> Iterator[ServerProcess]:
    process = ServerProcess(token)
    try:
        yield process
    finally:
        assert process.end() == 0


def wait_until(is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.02)


def main() -> None:
    live_run = LiveRun()

    def begin(server: Serving) -> None:
        def read() -> None:
            for line in sys.stdin.buffer:
                feed(live_run, line)
            live_run.end()
            server.stop()

        threading.Thread(target=read).start()
        print(server.port, flush=True)

    serve(make_app(live_run, sys.argv[1] if len(sys.argv) > 1 else None), "127.0.0.1", 0, begin)


if __name__ == "__main__":
    main()
