"""Hostile readers of the state and a seal: the one must not delay the other."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import urllib.request

from ft_rendezvous.config.settings import StateSettings
from tests.contract.live import LiveNode, LiveRun, live_run
from tests.state.test_export_log import wait_for
from tests.support.torchrun_cluster import free_port

CYCLES = 30
READERS = 200


def seal_s(run: LiveRun, nodes: list[LiveNode]) -> float:
    """Median of the time from the word that workers failed until everybody has its next rank."""
    times: list[float] = []
    for _ in range(CYCLES):
        began = time.perf_counter()
        run.seal(*nodes)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def is_served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/ft/v1/runs", timeout=5) as answer:
            return bool(json.load(answer))
    except OSError:
        return False


def test_two_hundred_hostile_readers_do_not_delay_a_seal() -> None:
    """The server is a process that yields to its host: what is left is that they share two cores with everybody."""
    port = free_port()
    with live_run(StateSettings(port=port), crash_loop=0, max_node_failures=0) as run:
        nodes = [run.node(1), run.node(2)]
        run.seal(*nodes)
        wait_for(lambda: is_served(port))
        alone_s = seal_s(run, nodes)
        words = [sys.executable, "-m", "tests.state.web.hostile", str(port), "60", str(READERS)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as hostile:
            try:
                assert hostile.stdout is not None
                assert hostile.stdout.readline().strip() == "ready"
                beset_s = seal_s(run, nodes)
                assert hostile.poll() is None, "they were there all the time"
            finally:
                hostile.kill()
        again_s = seal_s(run, nodes)
        print(f"median seal: {alone_s * 1e3:.1f} ms alone, {beset_s * 1e3:.1f} ms beset, {again_s * 1e3:.1f} ms again")
        assert beset_s < 10 * max(alone_s, again_s) + 0.05
        run.finish(*nodes)
