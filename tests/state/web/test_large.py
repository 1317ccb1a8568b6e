"""A run of 10,000 nodes: answered from bytes that are made once, whoever asks."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import httpx
import pytest

from benchmarks.state import BORN_NS, EPOCH, NODES, large_run, look
from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.web.live_run import LiveRun
from tests.state.web.servers import API, client_of, feed, live_run_of, make_client, serving

GENEROUS = 20
"""How many times the machine's own time for the same bytes an answer may take, on a machine that others use too."""


@pytest.fixture(scope="module")
def live_run() -> LiveRun:
    return live_run_of(large_run(NODES))


def test_an_answer_takes_about_as_long_as_its_bytes(live_run: LiveRun) -> None:
    """The benchmark `state` measures what this only bounds: 7 ms and 38 ms where it was written."""
    with client_of(live_run, clock_ns=lambda: BORN_NS + NS) as client:
        for path in (f"{API}/runs", f"{API}/runs/{EPOCH}/nodes"):
            took_s = []
            for _ in range(5):
                feed(live_run, look(live_run.read(lambda state: state.event_id) + 1))
                began = time.perf_counter()
                live_run.read(lambda state: (view.view_nodes(state), view.view_run(state, BORN_NS)))
                here_s = time.perf_counter() - began
                began = time.perf_counter()
                assert client.get(path, headers={"accept-encoding": "identity"}).status_code == 200
                took_s.append((time.perf_counter() - began) / here_s)
            assert min(took_s) < GENEROUS


def test_many_who_ask_at_once_get_the_same_bytes_made_once(live_run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = view.view_nodes

    def count(state: object) -> object:
        made.append(threading.current_thread().name)
        return original(state)  # type: ignore[arg-type]

    monkeypatch.setattr(view, "view_nodes", count)
    bodies: list[bytes] = []
    with serving(live_run, clock_ns=lambda: BORN_NS + NS) as server:

        def ask() -> None:
            with make_client(server.port) as client:
                bodies.append(client.get(f"{API}/runs/{EPOCH}/nodes").content)

        threads = [threading.Thread(target=ask) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(bodies) == 30
    assert len(set(bodies)) == 1
    assert len(made) == 1


def test_under_constant_change_those_who_wait_share(live_run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everybody's answer is at least as new as the question."""
    made = []
    original = view.view_nodes

    def count(state: object) -> object:
        made.append(1)
        return original(state)  # type: ignore[arg-type]

    monkeypatch.setattr(view, "view_nodes", count)
    is_over = threading.Event()

    def change() -> None:
        while not is_over.wait(0.002):
            feed(live_run, look(live_run.read(lambda state: state.event_id) + 1))

    answers = []
    with serving(live_run, clock_ns=lambda: BORN_NS + NS) as server:

        def ask() -> None:
            with make_client(server.port) as client:
                for _ in range(3):
                    answers.append(client.get(f"{API}/runs/{EPOCH}/nodes").status_code)

        changer = threading.Thread(target=change)
        changer.start()
        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        is_over.set()
        changer.join()
    assert answers == [200] * 60
    assert len(made) < 40


def test_a_question_after_an_event_is_answered_with_it(live_run: LiveRun) -> None:
    with client_of(live_run, clock_ns=lambda: BORN_NS + NS) as client:
        seen: list[int] = []
        for _ in range(10):
            newest = live_run.read(lambda state: state.event_id) + 1
            feed(live_run, look(newest))
            response: httpx.Response = client.get(f"{API}/runs/{EPOCH}")
            assert response.json()["event_id"] == newest
            seen.append(newest)
        assert all(after == before + 1 for before, after in pairwise(seen))
