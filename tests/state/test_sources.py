"""A directory, a store and an HTTP API tell the same of a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from ft_rendezvous.errors import StateUnavailable, StoreUnavailable
from ft_rendezvous.state.model.events import decode_line, encode_state_line
from ft_rendezvous.state.model.records import SCHEMA_VERSION
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.read.http_source import HttpSource
from ft_rendezvous.state.read.sources import FolderSource, Picture, StoreSource, picture_state
from ft_rendezvous.state.read.store_query import QueryAnswer, QueryClient
from tests.state.layout import fold_all, lay_out
from tests.state.story import tell_story

TOKEN = "let me in"
story = tell_story()
END_NS = story.now_ns
PICTURE = picture_state(story.state, END_NS)
RECORDED = Path(__file__).parent / "version_one"


class Stand(BaseHTTPRequestHandler):
    """What the state API is to answer, as far as a reader asks for it."""

    def __init__(self, breaks: list[int], run: object, cycles: object, nodes: object, *arguments: object) -> None:
        self.breaks = breaks
        """After how many events a stream breaks, the first ones."""
        self.run, self.cycles, self.nodes = run, cycles, nodes
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self.headers["Authorization"] not in (f"Bearer {TOKEN}", None):
            self.answer(401, {"error": "the token is wrong", "next": "look again"})
        elif self.headers["Authorization"] is None:
            self.answer(401, {"error": "a token is needed"})
        elif parts.path == "/api/ft/v1/runs":
            self.answer(200, [PICTURE.run])
        elif parts.path == f"/api/ft/v1/runs/{PICTURE.run.id}":
            self.answer(200, self.run)
        elif parts.path.endswith(f"/{PICTURE.run.id}/nodes"):
            self.answer(200, self.nodes)
        elif parts.path.endswith(f"/{PICTURE.run.id}/cycles"):
            self.answer(200, self.cycles)
        elif parts.path.endswith(f"/{PICTURE.run.id}/events"):
            self.stream(int(parse_qs(parts.query)["after"][0]))
        else:
            self.answer(404, {"error": "there is no such thing", "next": "look at /openapi.json"})

    def answer(self, status: int, what: object) -> None:
        body = msgspec.json.encode(what)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, after: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        lines = story.lines[after:]
        if self.breaks:
            lines = lines[: self.breaks.pop(0)]
        self.wfile.write(b": hello\n\n")
        for line in lines:
            event = decode_line(line)
            kind = type(event.event).__name__.encode()
            self.wfile.write(b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, kind, line.rstrip(b"\n")))


@contextmanager
def serving(
    *breaks: int, run: object = PICTURE.run, cycles: object = PICTURE.cycles, nodes: object = PICTURE.nodes
) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Stand, list(breaks), run, cycles, nodes))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class StandIn(QueryClient):
    """A store's window at growing numbers of events, of which the newest few are kept; then the store is gone."""

    def __init__(self, *sizes: int, kept: int = 1_000) -> None:
        self.sizes, self.kept = list(sizes), kept
        self.asked: list[int] = []

    def look(self, after: int) -> QueryAnswer:
        if not self.sizes:
            raise StoreUnavailable("host:29400", "it went silent")
        self.asked.append(after)
        size = self.sizes.pop(0)
        first = max(after, size - self.kept)
        return QueryAnswer(fold_all(RunState(), story.lines[:size]), story.lines[first:size])


def told(picture: Picture) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(picture, missing=None))


def test_all_sources_show_the_same(tmp_path: Path) -> None:
    lay_out(tmp_path, story.lines, per_file=50)
    folder = FolderSource(tmp_path, None, lambda: END_NS)
    store = StoreSource(StandIn(*[len(story.lines)] * 3), lambda: END_NS)
    with serving() as url:
        web = HttpSource(f"{url}/", "llm-7b", TOKEN)
        for source in (folder, store, web):
            assert told(source.look()) == told(PICTURE)
            assert list(source.lines(0, False)) == story.lines
            assert list(source.lines(150, False)) == story.lines[150:] or source is store
        assert told(web.look()) == told(PICTURE)


def test_a_store_is_followed_to_the_end_of_its_run() -> None:
    visitor = StandIn(40, 40, 90, len(story.lines), len(story.lines), kept=60)
    slept: list[float] = []
    lines = list(StoreSource(visitor, lambda: END_NS, slept.append).lines(0, True))
    # What lies between is not kept any more, and that is told.
    assert lines == [*story.lines[:90], encode_state_line(fold_all(RunState(), story.lines))]
    assert visitor.asked == [0, 40, 40, 90, len(story.lines)]


def test_a_store_that_goes_is_told() -> None:
    source = StoreSource(StandIn(40), lambda: END_NS, lambda _: None)
    seen = source.lines(38, True)
    assert [next(seen), next(seen)] == story.lines[38:40]
    with pytest.raises(StateUnavailable, match="it went silent: the run has ended, or its host is lost"):
        next(seen)


def test_of_a_run_that_never_began_nothing_is_known() -> None:
    with pytest.raises(StateUnavailable, match="nothing is known of this run yet"):
        StoreSource(StandIn(0), lambda: END_NS).look()


def test_a_stream_that_breaks_is_taken_up_where_it_broke() -> None:
    with serving(10, 0, 25) as url:
        web = HttpSource(url, None, TOKEN, sleep=lambda _: None)
        assert list(web.lines(5, True)) == story.lines[5:]


def test_a_stream_that_stays_silent_is_given_up() -> None:
    with serving(10, *[0] * 10) as url:
        seen = HttpSource(url, None, TOKEN, sleep=lambda _: None).lines(0, True)
        assert [next(seen) for _ in range(10)] == story.lines[:10]
        with pytest.raises(StateUnavailable, match="sends no more events: the run has ended, or its host is lost"):
            next(seen)


def test_a_server_that_goes_is_told() -> None:
    with serving(10) as url:
        web = HttpSource(url, None, TOKEN, sleep=lambda _: None)
        seen = web.lines(0, True)
        assert [next(seen) for _ in range(10)] == story.lines[:10]
    with pytest.raises(StateUnavailable, match=r"cannot be reached .*: the run has ended, or its host is lost"):
        list(seen)
    with pytest.raises(StateUnavailable, match="cannot be reached"):
        web.look()


@pytest.mark.parametrize(
    ("token", "name", "fact"),
    [
        (None, None, "a token is needed: set FT_STATE_TOKEN to the run's state_token"),
        ("guessed", None, "the token is wrong: look again"),
        (TOKEN, "other", "knows of no run 'other': there is llm-7b"),
    ],
)
def test_what_is_refused_says_why(token: str | None, name: str | None, fact: str) -> None:
    with serving() as url, pytest.raises(StateUnavailable, match=fact):
        HttpSource(url, name, token)


def test_the_address_of_the_page_brings_its_token() -> None:
    with serving() as url:
        assert HttpSource(f"{url}/?token=let+me+in").look().run.name == "llm-7b"


@pytest.mark.parametrize("news", [{}, {"status": "DREAMING"}])
def test_an_api_of_a_newer_schema_is_told(news: dict[str, str]) -> None:
    """Also if all that was read so far could be understood."""
    newer = json.loads(msgspec.json.encode(PICTURE.run)) | {"schema_version": 4} | news
    with serving(run=newer) as url:
        web = HttpSource(url, None, TOKEN)
        with pytest.raises(StateUnavailable, match="speaks schema version 4, and this ft-rendezvous up to 3"):
            web.look()


def test_an_api_of_version_one_is_understood() -> None:
    run, cycles, nodes = (json.loads((RECORDED / f"{name}.json").read_bytes()) for name in ("run", "cycles", "nodes"))
    assert (run["schema_version"], cycles[0]["group"], "group" in nodes[0]) == (1, "0", False)
    with serving(run=run, cycles=cycles, nodes=nodes) as url:
        picture = HttpSource(url, None, TOKEN).look()
    assert (picture.run.name, picture.run.schema_version) == ("sim", SCHEMA_VERSION)
    assert [cycle.group for cycle in picture.cycles] == [None] * len(cycles)
    assert [node.incarnation for node in picture.nodes] == [node["incarnation"] for node in nodes]
