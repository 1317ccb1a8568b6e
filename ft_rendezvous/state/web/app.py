"""The routes, answered from the hub."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ft_rendezvous.state import view
from ft_rendezvous.state.records import Run
from ft_rendezvous.state.web.hub import Hub

PREFIX = "/api/ft/v1"


def make_app(hub: Hub, token: str | None, clock_ns: Callable[[], int] = time.time_ns) -> Starlette:  # noqa: ARG001
    def run_now() -> Run | None:
        return hub.read(lambda state: view.view_run(state, clock_ns()))

    def check_run(request: Request) -> Run:
        wanted, run = unquote(request.path_params["id"]), run_now()
        if run is None or wanted not in (run.id, run.name):
            raise HTTPException(404)
        return run

    async def list_runs(_: Request) -> Response:
        run = run_now()
        return answer([] if run is None else [run])

    async def get_run(request: Request) -> Response:
        return answer(check_run(request))

    async def list_nodes(request: Request) -> Response:
        check_run(request)
        return answer(hub.read(view.view_nodes))

    async def list_cycles(request: Request) -> Response:
        check_run(request)
        return answer(hub.read(lambda state: view.view_cycles(state, clock_ns())))

    async def follow_events(request: Request) -> Response:
        check_run(request)
        given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        frames = hub.follow(int(given), request.query_params.get("follow") != "0")
        return StreamingResponse(frames, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def health(_: Request) -> Response:
        return answer({"status": "ok" if hub.problem is None else "degraded", "problem": hub.problem})

    async def page(_: Request) -> Response:
        body = files("ft_rendezvous.state.web").joinpath("page", "index.html").read_bytes()
        return Response(body, media_type="text/html")

    routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": page,
        "/healthz": health,
        f"{PREFIX}/runs": list_runs,
        f"{PREFIX}/runs/{{id}}": get_run,
        f"{PREFIX}/runs/{{id}}/nodes": list_nodes,
        f"{PREFIX}/runs/{{id}}/cycles": list_cycles,
        f"{PREFIX}/runs/{{id}}/events": follow_events,
    }
    return _RawPaths(routes=[Route(path, endpoint) for path, endpoint in routes.items()])


class _RawPaths(Starlette):
    """Routes by the path as it was sent, so that an id may contain an escaped slash."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("ascii")
        await super().__call__(scope, receive, send)


def answer(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"cache-control": "no-store"})
