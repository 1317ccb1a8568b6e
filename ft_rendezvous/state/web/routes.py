"""The routes as a table: the answers and the API's description both come from it, so they cannot differ."""

from __future__ import annotations

from typing import Any

import msgspec

from ft_rendezvous.state.model.events import Event
from ft_rendezvous.state.model.records import Cycle, Node, Run

PREFIX = "/api/ft/v1"
JSON = "application/json"
EVENTS = "text/event-stream"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered."""

    error: str
    """The fact."""
    next: str
    """What to do about it."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the state server is, and whether it hears from the coordinator."""

    status: str
    """`ok`, or `degraded`: then the answers may be old."""
    coordinator: str
    """`unknown` before the run began, then `heard`, `silent` (for three leases), `gone` or `ended`, as its run."""
    silent_s: float | None
    """How long ago the newest event was; None before the first."""
    event_id: int
    missed: int
    """Events that could not be taken in."""
    problem: str | None
    followers: int


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of its handler."""
    path: str
    summary: str
    returns: Any = None
    """The record that is answered; None for what is not JSON."""
    media_type: str = JSON
    is_open: bool = False
    """Answered without a token."""
    query: dict[str, str] = {}
    """Parameters and what they mean; all of them are integers."""


API_ROUTES = (
    ApiRoute(name="list_runs", path=f"{PREFIX}/runs", summary="All runs; [] before one began", returns=list[Run]),
    ApiRoute(name="get_run", path=f"{PREFIX}/runs/{{id}}", summary="One run", returns=Run),
    ApiRoute(
        name="list_nodes",
        path=f"{PREFIX}/runs/{{id}}/nodes",
        summary="Its nodes: the live ones in the order they came, then the dead ones that are still kept",
        returns=list[Node],
    ),
    ApiRoute(
        name="list_cycles",
        path=f"{PREFIX}/runs/{{id}}/cycles",
        summary="Its cycles, oldest first",
        returns=list[Cycle],
        query={"ranks": "0: leave out the ranks of the nodes, which are most of a large run's answer."},
    ),
    ApiRoute(
        name="follow_events",
        path=f"{PREFIX}/runs/{{id}}/events",
        summary="Its events, as server-sent events: the past ones, then new ones as they come",
        returns=Event,
        media_type=EVENTS,
        query={
            "after": "Begin after this event_id; a Last-Event-ID header counts more. If the next event is not kept any"
            " more, a StateTold event comes first.",
            "follow": "0: end after the events that are there now.",
        },
    ),
    ApiRoute(
        name="tell_health",
        path="/healthz",
        summary="How the server is: 200 if all is well, 503 if its answers may be old",
        returns=Health,
        is_open=True,
    ),
    ApiRoute(name="tell_metrics", path="/metrics", summary="For Prometheus", media_type="text/plain"),
    ApiRoute(name="describe", path="/openapi.json", summary="This description", returns=dict[str, Any]),
    ApiRoute(name="show_page", path="/", summary="The page for people", media_type="text/html"),
    ApiRoute(
        name="show_file",
        path="/{file}",
        summary="A file of the page",
        media_type="application/octet-stream",
    ),
)
