"""Following a run: no event is lost and none comes twice, whenever the connection is cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.state import EPOCH, large_run
from ft_rendezvous.state.model.events import StateTold, decode_line, encode_state, encode_state_line, replay
from ft_rendezvous.state.web.live_run import LiveRun
from tests.state.recording import Recording, eventful_seed, record_seed
from tests.state.web.servers import API, client_of, feed, live_run_of, make_client, serving, wait_until

EVENTS = f"{API}/runs/sim/events"
RECORDING = record_seed(eventful_seed())
COUNT = len(RECORDING.lines)


def follow(client: httpx.Client, path: str = EVENTS, **headers: str) -> Iterator[httpx_sse.ServerSentEvent]:
    """Events until the stream ends; retries and reassurances are none."""
    with httpx_sse.connect_sse(client, "GET", path, headers=headers) as source:
        assert source.response.status_code == 200
        yield from (event for event in source.iter_sse() if event.data)


def lines_of(events: list[httpx_sse.ServerSentEvent]) -> list[bytes]:
    return [event.data.encode() + b"\n" for event in events]


def test_what_is_there_is_what_was_taken_in() -> None:
    with client_of(live_run_of(RECORDING.lines)) as client:
        events = list(follow(client, f"{EVENTS}?follow=0"))
        assert lines_of(events) == RECORDING.lines
        assert [int(event.id) for event in events] == list(range(1, COUNT + 1))
        assert [event.event for event in events] == [type(each.event).__name__ for each in RECORDING.events]
        assert list(follow(client, f"{EVENTS}?follow=0&after={COUNT}")) == []


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(1, COUNT - 1), min_size=1, max_size=6), taken=st.integers(1, COUNT))
def test_a_stream_may_be_cut_anywhere(cuts: list[int], taken: int) -> None:
    """What arrives before each cut and after it, put together, is the run; more comes in meanwhile."""
    live_run = live_run_of(RECORDING.lines[:taken])
    with client_of(live_run) as client:
        received: list[bytes] = []
        last = ""
        for cut in sorted(cuts):
            for event in follow(client, f"{EVENTS}?follow=0", **({"last-event-id": last} if last else {})):
                received.append(event.data.encode() + b"\n")
                last = event.id
                if len(received) >= cut:
                    break
        for line in RECORDING.lines[taken:]:
            feed(live_run, line)
        received += lines_of(list(follow(client, f"{EVENTS}?follow=0&after=7", **{"last-event-id": last})))
        assert received == RECORDING.lines


@settings(max_examples=40)
@given(
    kept=st.integers(1, 30), taken=st.integers(2, COUNT), after=st.integers(0, COUNT + 5), stop=st.integers(0, COUNT)
)
def test_what_is_too_old_begins_with_a_told_state_and_gives_the_same_run(
    kept: int, taken: int, after: int, stop: int
) -> None:
    """Whoever folds what was received knows what the coordinator knew, bit for bit."""
    live_run = live_run_of(RECORDING.lines[:taken], ring_lines=kept)
    with client_of(live_run) as client:
        events = list(follow(client, f"{EVENTS}?follow=0&after={after}"))
        is_to_be_had = taken - kept <= after <= taken
        assert [event.event for event in events[:1]] == ([] if after == taken else [events[0].event])
        assert any(event.event == StateTold.__name__ for event in events) == (not is_to_be_had)
        received = [*RECORDING.lines[:after], *lines_of(events)] if is_to_be_had else lines_of(events)
        received = received[: max(1, stop)] if not is_to_be_had else received
        last = decode_line(received[-1]).event_id if received else 0
        for line in RECORDING.lines[taken:]:
            feed(live_run, line)
        received += lines_of(list(follow(client, f"{EVENTS}?follow=0&after={last}")))
        assert encode_state(replay(iter(received))) == encode_state(RECORDING.state)


def test_a_follower_hears_what_comes_and_goes_home_when_the_coordinator_does() -> None:
    live_run = live_run_of(RECORDING.lines[:5])
    received: list[bytes] = []
    with serving(live_run) as server, make_client(server.port) as client:

        def listen() -> None:
            for event in follow(client):
                received.append(event.data.encode() + b"\n")

        thread = threading.Thread(target=listen)
        thread.start()
        for number in range(5, COUNT):
            feed(live_run, RECORDING.lines[number])
            if number % 10 == 0:
                wait_until(lambda so_far=number: len(received) == so_far + 1)  # type: ignore[misc]
        live_run.end()
        thread.join(30)
        assert not thread.is_alive()
    assert received == RECORDING.lines


def test_many_follow_at_once_and_all_hear_the_same() -> None:
    live_run = live_run_of(RECORDING.lines[:1])
    received: list[list[bytes]] = [[] for _ in range(20)]
    with serving(live_run) as server:

        def listen(into: list[bytes]) -> None:
            with make_client(server.port) as client:
                into += lines_of(list(follow(client)))

        threads = [threading.Thread(target=listen, args=(each,)) for each in received]
        for thread in threads:
            thread.start()
        for line in RECORDING.lines[1:]:
            feed(live_run, line)
        live_run.end()
        for thread in threads:
            thread.join(30)
    assert all(each == RECORDING.lines for each in received)


def test_a_gap_before_the_server_is_closed_by_a_told_state() -> None:
    """The pipe lost events and says so with a told state: followers get that, and go on."""
    middle = COUNT // 2
    told = encode_state_line(replay(iter(RECORDING.lines[:middle])))
    live_run = live_run_of(RECORDING.lines[:10])
    with client_of(live_run) as client:
        feed(live_run, RECORDING.lines[middle])
        assert client.get("/healthz").status_code == 503
        for line in (told, *RECORDING.lines[middle:]):
            feed(live_run, line)
        assert client.get("/healthz").json()["problem"] is None
        events = list(follow(client, f"{EVENTS}?follow=0&after=10"))
        assert events[0].event == StateTold.__name__
        assert encode_state(replay(iter(lines_of(events)))) == encode_state(RECORDING.state)
        assert live_run.lines_after(middle) == RECORDING.lines[middle:]
        assert decode_line(live_run.lines_after(3)[0]).event == StateTold(state=RECORDING.state)


def test_who_falls_behind_is_told_the_state_and_goes_on() -> None:
    """And nothing is kept for it meanwhile."""
    lines = list(large_run(20_000))
    live_run = live_run_of(lines[:2], ring_lines=100)
    with serving(live_run) as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(f"GET {API}/runs/{EPOCH}/events HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        for line in lines[2:]:
            feed(live_run, line)
        live_run.end()
        body = slow.makefile("rb").read().partition(b"\r\n\r\n")[2]
    received = [each.removeprefix(b"data: ") + b"\n" for each in body.split(b"\n") if each.startswith(b"data: ")]
    assert len(received) < len(lines)
    assert any(isinstance(decode_line(each).event, StateTold) for each in received)
    assert encode_state(replay(iter(received))) == encode_state(replay(iter(lines)))


def test_a_server_that_is_stopped_ends_its_streams_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with serving(live_run_of(RECORDING.lines)) as server, make_client(server.port) as client:
        following = follow(client)
        assert next(following).id == "1"
        server.stop()
        with pytest.raises(httpx.HTTPError):
            list(following)
    assert time.monotonic() - began < 20
    assert caplog.records == []


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "²", "%00"])
def test_what_is_no_event_id_is_refused(after: str) -> None:
    with client_of(live_run_of(RECORDING.lines)) as client:
        response = client.get(f"{EVENTS}?after={after}")
        assert response.status_code == 400
        assert set(response.json()) == {"error", "next"}


def test_only_so_many_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.app.FOLLOWERS", 2)
    with client_of(live_run_of(RECORDING.lines)) as client:
        first, second = follow(client), follow(client)
        assert next(first).id == next(second).id == "1"
        refused = client.get(EVENTS)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        first.close()  # type: ignore[attr-defined]
        wait_until(lambda: client.get("/healthz").json()["followers"] == 1)
        assert next(follow(client)).id == "1"


def test_silence_is_broken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.web.live_run.STILL_THERE_INTERVAL_S", 0.05)
    with client_of(live_run_of(RECORDING.lines)) as client, client.stream("GET", f"{EVENTS}?after={COUNT}") as response:
        text = ""
        for part in response.iter_text():
            text += part
            if text.count(": still there") >= 3:
                break


def test_the_ring_is_bounded_by_lines_and_by_bytes() -> None:
    recording: Recording = RECORDING
    assert len(live_run_of(recording.lines, ring_lines=5).lines_after(COUNT - 5)) == 5
    small = live_run_of(recording.lines, ring_bytes=2_000)
    kept = next(n for n in range(COUNT) if b"StateTold" not in small.lines_after(n)[0])
    assert sum(map(len, small.lines_after(kept))) <= 2_000
    assert LiveRun(ring_bytes=1).lines_after(0) == []
    assert b"StateTold" in live_run_of(recording.lines, ring_bytes=1).lines_after(COUNT - 1)[0]
