"""Every route, asked by a real client over HTTP, on runs that were simulated."""

from __future__ import annotations

import gzip
import socket

import msgspec
import pytest

from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.events import decode_line, encode_line, encode_state_line, make_event, replay
from ft_rendezvous.state.model.records import Cycle, CycleStatus, Node, Run, RunStatus
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.web.live_run import LiveRun
from tests.state.group_story import tell_group_story
from tests.state.recording import BORN_NS, eventful_seed, record_seed
from tests.state.web.servers import API, client_of, feed, live_run_of

NOW_NS = BORN_NS + 3600 * NS


def begin(run_id: str, epoch: str = "e1") -> bytes:
    entry = journal.RunBegan(run_id=run_id, epoch=epoch, settings={"nnodes": "2:2"}, versions={}, host="head pid 1")
    return encode_line(make_event(1, BORN_NS, entry))


def test_before_anything_is_known_the_list_of_runs_is_empty() -> None:
    with client_of(LiveRun()) as client:
        assert client.get(f"{API}/runs").json() == []
        assert client.get(f"{API}/runs/any").status_code == 404
        assert client.get("/healthz").json()["coordinator"] == "unknown"
        assert client.get("/metrics").status_code == 200
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_what_is_answered_is_what_was_folded(seed: int) -> None:
    recording = record_seed(seed)
    expected = view.view_run(recording.state, NOW_NS)
    assert expected is not None
    with client_of(live_run_of(recording.lines), clock_ns=lambda: NOW_NS) as client:
        assert msgspec.json.decode(client.get(f"{API}/runs").content, type=list[Run]) == [expected]
        for name in (expected.id, expected.name):
            one = client.get(f"{API}/runs/{name}")
            assert msgspec.json.decode(one.content, type=Run) == expected
            nodes = client.get(f"{API}/runs/{name}/nodes")
            assert msgspec.json.decode(nodes.content, type=list[Node]) == view.view_nodes(recording.state)
            cycles = client.get(f"{API}/runs/{name}/cycles")
            known = msgspec.json.decode(cycles.content, type=list[Cycle])
            assert known == view.view_cycles(recording.state, NOW_NS)
            assert [cycle.cycle_id for cycle in known] == sorted(cycle.cycle_id for cycle in known)


@pytest.mark.parametrize(
    "name", ["a/b", "a%2Fb", "50%", "a b", "x/nodes", "über", "a?b#c", "<script>alert(1)</script>", "a\nb", "…", "..x"]
)
def test_a_runs_name_may_contain_anything(name: str) -> None:
    with client_of(live_run_of([begin(name)])) as client:
        for tail in ("", "/nodes", "/cycles", "/events?follow=0"):
            quoted = "".join(f"%{byte:02X}" for byte in name.encode())
            assert client.get(f"{API}/runs/{quoted}{tail}").status_code == 200, tail
        assert client.get(f"{API}/runs").json()[0]["name"] == name


def test_what_is_not_there_is_said_with_a_next_step_and_without_the_question() -> None:
    with client_of(live_run_of([begin("job")])) as client:
        for path in (
            f"{API}/runs/%3Cscript%3E",
            f"{API}/runs/no/nodes",
            "/no<such>",
            f"{API}/runs/",
            "/page/",
            "/../x",
        ):
            response = client.get(path)
            assert response.status_code == 404
            assert response.headers["content-type"] == "application/json"
            assert set(response.json()) == {"error", "next"}
            assert "script" not in response.text
            assert "such>" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_asking_is_allowed(method: str) -> None:
    with client_of(live_run_of([begin("job")])) as client:
        response = client.request(method, f"{API}/runs")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD"
        assert set(response.json()) == {"error", "next"}
        assert client.request("GET", f"{API}/runs", content=b"x" * 100).status_code == 413


@pytest.mark.parametrize("path", ["", "/job", "/job/nodes", "/job/cycles", "/job/events"])
def test_a_head_is_what_get_would_say_without_the_body(path: str) -> None:
    with client_of(live_run_of([begin("job")]), clock_ns=lambda: NOW_NS) as client:
        head = client.head(f"{API}/runs{path}")
        assert head.status_code == 200
        assert head.content == b""
        if path != "/job/events":
            got = client.get(f"{API}/runs{path}")
            assert {**head.headers, "date": ""} == {**got.headers, "date": ""}


def test_who_has_the_newest_answer_is_told_so() -> None:
    recording = record_seed(eventful_seed())
    live_run = live_run_of(recording.lines[:-1])
    with client_of(live_run, clock_ns=lambda: NOW_NS) as client:
        for path in ("/runs", "/runs/sim", "/runs/sim/nodes", "/runs/sim/cycles"):
            first = client.get(API + path)
            assert first.headers["cache-control"] == "no-cache"
            again = client.get(API + path, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        before = client.get(f"{API}/runs").headers["etag"]
        feed(live_run, recording.lines[-1])
        after = client.get(f"{API}/runs", headers={"if-none-match": before})
        assert after.status_code == 200
        assert after.json()[0]["event_id"] == len(recording.lines)


def test_large_answers_are_packed_for_who_wants_that() -> None:
    with client_of(live_run_of(record_seed(eventful_seed()).lines), clock_ns=lambda: NOW_NS) as client:
        path = f"{API}/runs/sim/nodes"
        plain = client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        for accepted in ("gzip", "br, gzip;q=0.5", "*"):
            with client.stream("GET", path, headers={"accept-encoding": accepted}) as packed:
                assert packed.headers["content-encoding"] == "gzip"
                assert gzip.decompress(b"".join(packed.iter_raw())) == plain.content
        assert "content-encoding" not in client.get(path, headers={"accept-encoding": "gzip;q=0"}).headers


def test_a_run_that_goes_on_counts_its_seconds() -> None:
    recording = record_seed(eventful_seed())
    sealed = next(n for n, each in enumerate(recording.events) if isinstance(each.event, journal.CycleSealed))
    now_ns = [recording.events[sealed].timestamp_ns]
    with client_of(live_run_of(recording.lines[: sealed + 1]), clock_ns=lambda: now_ns[0]) as client:
        before = client.get(f"{API}/runs/sim").json()
        now_ns[0] += 5 * NS
        after = client.get(f"{API}/runs/sim").json()
        assert after["trained_s"] == pytest.approx(before["trained_s"] + 5)


def test_a_run_whose_coordinator_vanished_is_aborted() -> None:
    recording = record_seed(eventful_seed())
    lines = recording.lines[: len(recording.lines) // 2]
    live_run, last_ns = live_run_of(lines), recording.events[len(lines) - 1].timestamp_ns
    now_ns = [last_ns + NS]
    with client_of(live_run, clock_ns=lambda: now_ns[0]) as client:
        assert client.get(f"{API}/runs/sim").json()["status"] != RunStatus.ABORTED
        assert client.get(f"{API}/runs/sim/cycles").json()[-1]["status"] in (CycleStatus.PENDING, CycleStatus.RUNNING)
        health = client.get("/healthz")
        assert (health.status_code, health.json()["coordinator"]) == (200, "heard")
        now_ns[0] = last_ns + 60 * NS
        run = client.get(f"{API}/runs/sim").json()
        assert run["status"] == RunStatus.ABORTED
        assert "vanished" in run["status_detail"]
        assert run["end_time_ns"] == last_ns
        cycle = client.get(f"{API}/runs/sim/cycles").json()[-1]
        assert (cycle["status"], cycle["end_time_ns"]) == (CycleStatus.ABORTED, last_ns)
        health = client.get("/healthz")
        assert (health.status_code, health.json()["coordinator"]) == (503, "silent")
        now_ns[0] = last_ns + NS
        live_run.end()
        assert client.get(f"{API}/runs").json()[0]["status"] == RunStatus.ABORTED
        assert client.get("/healthz").json()["coordinator"] == "gone"


def test_an_event_that_makes_no_sense_is_told_of_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    recording = record_seed(eventful_seed())
    live_run = live_run_of(recording.lines[:20])
    with client_of(live_run, clock_ns=lambda: recording.events[19].timestamp_ns) as client:
        feed(live_run, recording.lines[30])
        feed(live_run, recording.lines[20])
        health = client.get("/healthz")
        assert health.status_code == 503
        assert health.json()["missed"] == 2
        assert "event 31 cannot be folded" in health.json()["problem"]
        assert client.get(f"{API}/runs/sim").json()["event_id"] == 20
        assert sum("state server" in record.message for record in caplog.records) == 1


def test_a_told_state_makes_good_what_was_missed() -> None:
    recording = record_seed(eventful_seed())
    live_run = live_run_of([*recording.lines[:20], recording.lines[25]])
    assert live_run.problem is not None
    feed(live_run, encode_state_line(replay(iter(recording.lines[:30]))))
    assert live_run.problem is None
    assert live_run.missed == 1


def test_an_event_that_cannot_follow_is_told_of_too() -> None:
    recording = record_seed(eventful_seed())
    live_run = live_run_of([*recording.lines[:20], recording.lines[25]])
    assert live_run.problem is not None
    assert "event 26 cannot be folded" in live_run.problem


def test_a_bug_is_told_to_who_asked_and_once_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(live_run_of(record_seed(eventful_seed()).lines)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(view, "view_cycles", lambda *_: 1 / 0)
            for _ in range(3):
                response = client.get(f"{API}/runs/sim/cycles")
                assert response.status_code == 500
                assert set(response.json()) == {"error", "next"}
                assert "division" not in response.text
        assert client.get(f"{API}/runs/sim/cycles").status_code == 200
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in() -> None:
    with client_of(LiveRun()) as client:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        for path in ("/", f"{API}/runs", "/healthz", "/none"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers
        assert client.get("/index.html").content == page.content
        for path in ("/__init__.py", "/live_run.py", "/%2e%2e/live_run.py", "/..%2flive_run.py", "/page"):
            assert client.get(path).status_code == 404


def test_what_is_no_http_is_answered_and_closed() -> None:
    with client_of(LiveRun()) as client:
        response = client.get("/", headers={"x-large": "x" * 50_000})
        assert response.status_code == 431
        assert set(response.json()) == {"error", "next"}
        port = client.base_url.port
        for nonsense in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000):
            with socket.create_connection(("127.0.0.1", port or 0), timeout=30) as connection:
                connection.sendall(nonsense)
                head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
                assert b" 400 " in head
                assert set(msgspec.json.decode(body)) == {"error", "next"}


def test_cycles_can_be_had_without_who_had_which_rank() -> None:
    recording = record_seed(3)
    with client_of(live_run_of(recording.lines)) as client:
        answer = client.get(f"{API}/runs/{recording.world.epoch}/cycles", params={"ranks": "0"}).json()
    assert [cycle["cycle_id"] for cycle in answer] == [cycle.cycle_id for cycle in recording.state.cycles]
    assert all(cycle["ranks"] is None and cycle["standbys"] is None for cycle in answer)


def test_groups_are_in_the_run_and_at_each_node_and_cycle() -> None:
    story = tell_group_story()
    lines = story.lines[: story.marks["a group waits"]]
    now_ns = decode_line(lines[-1]).timestamp_ns
    with client_of(live_run_of(lines), clock_ns=lambda: now_ns) as client:
        path = f"{API}/runs/hsdp-30b"
        run, nodes, cycles = (client.get(f"{path}{part}").json() for part in ("", "/nodes", "/cycles"))
    assert [(each["group"], each["status"], each["cycle_id"], each["live"]) for each in run["groups"]] == [
        (0, "RUNNING", 1, 2),
        (1, "WAITING", 4, 1),
        (2, "RUNNING", 3, 2),
    ]
    assert {node["infra_rank"]: (node["group"], node["group_rank"]) for node in nodes if node["status"] == "ALIVE"} == {
        0: (0, 0),
        1: (0, 1),
        3: (1, 1),
        4: (2, 0),
        6: (2, 1),
    }
    assert [(each["group"], each["groups"], each["previous_id"]) for each in cycles] == [
        (None, [0, 1, 2], None),
        (1, [1], 1),
        (2, [2], 1),
        (1, [], 2),
    ]
    assert cycles[0]["left"] == {"1": "ERRORED", "2": "ERRORED"}
