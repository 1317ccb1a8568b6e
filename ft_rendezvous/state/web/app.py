"""The application: answers every route of the table from what is known of the live run."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.records import without_ranks
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.web.access import AccessGuard, Refusal, TokenCheck, not_found, refuse
from ft_rendezvous.state.web.answers import PACKED_FROM_BYTES, AnswerCache, CachedBody
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.metrics import MEDIA_TYPE, write_metrics
from ft_rendezvous.state.web.openapi import describe_api
from ft_rendezvous.state.web.page_files import INDEX, PageFile, read_page
from ft_rendezvous.state.web.routes import API_ROUTES, JSON, Problem
from ft_rendezvous.state.web.sending import BodiesInFlight, BytesResponse, FollowResponse
from ft_rendezvous.state.web.views import see_cycles, see_health, see_run, stamp_cycles, stamp_run

log = logging.getLogger("ft_rendezvous")

FOLLOWERS = 256
"""How many clients may follow at once. The others can poll, which is cheap too."""
FOLLOW_RETRY_DELAY_S = 10
STREAM_RETRY_DELAY_MS = 1_000
"""When a browser whose stream ended follows again."""
MAX_EVENT_ID = 2**63
MAX_BUGS_LOGGED = 20


def make_app(live_run: LiveRun, token: str | None, clock_ns: Callable[[], int] = time.time_ns) -> Starlette:
    """The server's application. Without a token, every client that reaches it is answered."""
    handlers = _Handlers(live_run, token is not None, clock_ns)
    token_check = None if token is None else TokenCheck(token)
    open_paths = frozenset(endpoint.path for endpoint in API_ROUTES if endpoint.is_open)
    app = Starlette(
        routes=[Route(each.path, getattr(handlers, each.name), name=each.name) for each in API_ROUTES],
        middleware=[Middleware(AccessGuard, token_check=token_check, open_paths=open_paths)],
        exception_handlers={HTTPException: _tell_http_error, Exception: _BugLog().answer},
    )
    # A redirect would repeat the request's path, and an id may end with a slash.
    app.router.redirect_slashes = False
    return app


class _Handlers:
    """One method for every endpoint, by its name."""

    def __init__(self, live_run: LiveRun, has_token: bool, clock_ns: Callable[[], int]) -> None:
        self._live_run = live_run
        self._clock_ns = clock_ns
        self._outflow = BodiesInFlight()
        self._followers = 0
        self._page = read_page()
        self._page_answers = {name: CachedBody(file.body) for name, file in self._page.items()}
        self._description = encode_body(describe_api(has_token))
        run_stamp = partial(stamp_run, live_run)
        self._run = AnswerCache(lambda now_ns: encode_body(see_run(live_run, now_ns)), run_stamp)
        self._runs = AnswerCache(self._encode_runs, run_stamp)
        self._metrics = AnswerCache(
            lambda now_ns: CachedBody(write_metrics(live_run, now_ns)), lambda now_ns: (live_run.version, now_ns // NS)
        )
        self._nodes = AnswerCache(lambda _: encode_body(live_run.read(view.view_nodes)), lambda _: live_run.version)
        cycles_stamp = partial(stamp_cycles, live_run)
        self._cycles = AnswerCache(lambda now_ns: self._encode_cycles(now_ns, has_ranks=True), cycles_stamp)
        self._cycles_without_ranks = AnswerCache(
            lambda now_ns: self._encode_cycles(now_ns, has_ranks=False), cycles_stamp
        )

    # --- what is known --------------------------------------------------------------------------------

    async def list_runs(self, request: Request) -> Response:
        return await self._give(request, await self._runs.get(self._clock_ns()))

    async def get_run(self, request: Request) -> Response:
        return await self._of_run(request, self._run)

    async def list_nodes(self, request: Request) -> Response:
        return await self._of_run(request, self._nodes)

    async def list_cycles(self, request: Request) -> Response:
        has_ranks = request.query_params.get("ranks") != "0"
        return await self._of_run(request, self._cycles if has_ranks else self._cycles_without_ranks)

    async def follow_events(self, request: Request) -> Response:
        if not self._is_here(request):
            return _no_run()
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        after = int(given) if given.isascii() and given.isdigit() and len(given) < 20 else MAX_EVENT_ID
        if after >= MAX_EVENT_ID:
            problem = Problem(error="the event to begin after is no event_id", next="send a number from 0")
            return refuse(Refusal(status=400, problem=problem))
        if self._followers >= FOLLOWERS:
            problem = Problem(
                error=f"{FOLLOWERS} clients follow already", next="ask again later, or poll with `follow=0`"
            )
            return refuse(Refusal(status=503, problem=problem, headers={"retry-after": str(FOLLOW_RETRY_DELAY_S)}))
        frames = self._follow(after, request.query_params.get("follow") != "0", request.method == "HEAD")
        return FollowResponse(request, self._outflow, frames)

    # --- about the server -----------------------------------------------------------------------------

    async def tell_health(self, _: Request) -> Response:
        health = see_health(self._live_run, self._clock_ns(), self._followers)
        status = 200 if health.status == "ok" else 503
        return Response(msgspec.json.encode(health), status, {"cache-control": "no-store"}, JSON)

    async def tell_metrics(self, request: Request) -> Response:
        return await self._give(request, await self._metrics.get(self._clock_ns()), MEDIA_TYPE)

    async def describe(self, request: Request) -> Response:
        return await self._give(request, self._description)

    async def show_page(self, request: Request) -> Response:
        return await self._show(request, INDEX)

    async def show_file(self, request: Request) -> Response:
        name = request.path_params["file"]
        return await self._show(request, name) if name in self._page else not_found()

    # --- parts ----------------------------------------------------------------------------------------

    def _is_here(self, request: Request) -> bool:
        wanted = unquote(request.path_params["id"])
        began = self._live_run.began
        return began is not None and wanted in (began.epoch, began.run_id)

    async def _of_run(self, request: Request, shelf: AnswerCache[CachedBody]) -> Response:
        if not self._is_here(request):
            return _no_run()
        return await self._give(request, await shelf.get(self._clock_ns()))

    async def _give(
        self, request: Request, answer: CachedBody, media_type: str = JSON, headers: dict[str, str] | None = None
    ) -> Response:
        """The answer as this client wants it: packed, plain, or not at all because it has it."""
        headers = {"etag": answer.etag, "vary": "accept-encoding", **(headers or {})}
        # Weakly compared, as this header is.
        if answer.etag.removeprefix("W/") in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = answer.body
        if len(body) >= PACKED_FROM_BYTES and _wants_gzip(request.headers.get("accept-encoding", "")):
            body = await answer.pack()
            headers["content-encoding"] = "gzip"
        return BytesResponse(self._outflow, body, media_type, headers=headers)

    async def _show(self, request: Request, name: str) -> Response:
        file: PageFile = self._page[name]
        policy = {"content-security-policy": file.policy}
        return await self._give(request, self._page_answers[name], file.media_type, policy)

    async def _follow(self, after: int, is_live: bool, is_head: bool) -> AsyncGenerator[bytes]:
        if is_head:
            return
        self._followers += 1
        try:
            yield b"retry: %d\n\n" % STREAM_RETRY_DELAY_MS
            async with aclosing(self._live_run.follow(after, is_live)) as following:
                async for frames in following:
                    yield frames
        finally:
            self._followers -= 1

    def _encode_runs(self, now_ns: int) -> CachedBody:
        run = see_run(self._live_run, now_ns)
        return encode_body([] if run is None else [run])

    def _encode_cycles(self, now_ns: int, has_ranks: bool) -> CachedBody:
        cycles = see_cycles(self._live_run, now_ns)
        return encode_body(cycles if has_ranks else [without_ranks(cycle) for cycle in cycles])


def encode_body(value: object) -> CachedBody:
    return CachedBody(msgspec.json.encode(value))


def _wants_gzip(accepted: str) -> bool:
    for each in accepted.lower().split(","):
        name, _, quality = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _no_run() -> Response:
    problem = Problem(error="no run of this id or name is known here", next="GET /api/ft/v1/runs lists what is")
    return refuse(Refusal(status=404, problem=problem))


async def _tell_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return not_found()
    problem = Problem(error=f"{error.status_code}: {error.detail}", next="GET /openapi.json lists what there is")
    return refuse(Refusal(status=error.status_code, problem=problem))


class _BugLog:
    """Logs each bug once: clients repeat their requests, and would repeat the bug."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    async def answer(self, _: Request, error: Exception) -> Response:
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._logged and len(self._logged) < MAX_BUGS_LOGGED:
            self._logged.add(kind)
            log.error("state server: a bug, logged once: %s", kind, exc_info=error)
        return _bug()


def _bug() -> Response:
    problem = Problem(
        error="the state server has a bug, and its log says which", next="report it; the run is not affected"
    )
    # uvicorn ends the connection after this; the client should know.
    return refuse(Refusal(status=500, problem=problem, headers={"connection": "close"}))
