"""Which requests are answered: judged from the head of a request, before the application sees it.

all clients  GET and HEAD alone, and no body
no token     the host must be an address or `localhost`: a foreign page whose name resolves to this machine gets
             nothing
a token      as `Authorization: Bearer TOKEN`, or as the cookie that `/?token=TOKEN` gives
browsers     a page of another origin gets nothing
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ft_rendezvous.state.web.routes import JSON, PREFIX, Problem

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
CLOSED_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""For data."""
ENTRANCE_POLICY = "default-src 'none'; frame-ancestors 'none'"
"""Without a sandbox: in one, this page could not go on to another."""
HEAD_BYTES = 16 * 2**10
COOKIE_AGE_S = 30 * 24 * 3600
ENTRANCE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/">
<title>ft_rendezvous</title><p>The token is right: <a href="/">on to the page</a>.</html>
"""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    problem: Problem
    headers: dict[str, str] = {}


def judge_head(method: str, headers: Mapping[str, str]) -> Refusal | None:
    """Why such a request is never answered; None if it may be."""
    # A client that is refused here may still send a body, which the server will not read.
    close = {"connection": "close"}
    if method not in ("GET", "HEAD"):
        fact = "nothing can be changed here: only GET and HEAD are answered"
        return Refusal(
            status=405,
            problem=Problem(error=fact, next="use `ftr` to act on a run, GET to ask about it"),
            headers={"allow": "GET, HEAD", **close},
        )
    if sum(len(name) + len(value) for name, value in headers.items()) > HEAD_BYTES:
        problem = Problem(error="the headers are too large", next="send fewer or shorter ones, or delete cookies")
        return Refusal(status=431, problem=problem, headers=close)
    if headers.get("content-length", "0").strip() != "0" or "transfer-encoding" in headers:
        problem = Problem(error="a request with a body", next="send the same request without one")
        return Refusal(status=413, problem=problem, headers=close)
    return None


def judge_origin(headers: Mapping[str, str], has_token: bool) -> Refusal | None:
    """Why a request is refused that a foreign page may have sent; None if it is not."""
    host = headers.get("host", "")
    if not has_token and not is_here(host):
        problem = Problem(
            error="the host in this address is a name, and a foreign name server may control it",
            next="use `localhost` or the machine's IP address, or set state_token",
        )
        return Refusal(status=403, problem=problem)
    origin = headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    site = headers.get("sec-fetch-site", "none")
    is_navigation = headers.get("sec-fetch-mode") == "navigate"
    if is_foreign or (site not in ("none", "same-origin") and not is_navigation):
        problem = Problem(error="asked by a page of another origin", next="ask from the page at / or from no page")
        return Refusal(status=403, problem=problem)
    return None


def is_here(host: str) -> bool:
    """Whether a Host header is an address or `localhost`: no name server can change those."""
    name = urlsplit(f"//{host}").hostname if _is_netloc(host) else None
    if name is None:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_netloc(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").netloc == host and "@" not in host
    except ValueError:
        return False


class TokenCheck:
    """Compares tokens and cookies with the run's token, in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # Browsers send a host's cookies to all its ports: what they keep must not be the token itself.
        self._pass = hashlib.sha256(b"ft_rendezvous cookie " + self._token).hexdigest()

    def opens(self, headers: Mapping[str, str]) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            # A header may hold any bytes; a token is UTF-8.
            return self.is_token(credentials.strip().encode("latin-1"))
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        given = cookies.get(cookie_name(headers))
        return given is not None and hmac.compare_digest(given.value.encode(), self._pass.encode())

    def is_token(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self._token)

    def enter(self, request: Request) -> Response:
        """Keep a cookie in the browser, and go on to an address that does not show the token.

        With a page and not with a redirect: after a redirect, a browser does not send a strict cookie.
        """
        headers = {"cache-control": "no-store", "content-security-policy": ENTRANCE_POLICY}
        response = Response(ENTRANCE, media_type="text/html", headers=headers)
        name = cookie_name(request.headers)
        response.set_cookie(name, self._pass, max_age=COOKIE_AGE_S, path="/", httponly=True, samesite="strict")
        return response


def cookie_name(headers: Mapping[str, str]) -> str:
    """Another name for each port: the servers of several runs may be on one machine."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"ft_state_{port}" if port.isascii() and port.isdigit() else "ft_state"


class AccessGuard:
    """Refuses what the functions above refuse, and adds the headers that restrict browsers."""

    def __init__(self, app: ASGIApp, token_check: TokenCheck | None, open_paths: frozenset[str]) -> None:
        self._app = app
        self._token_check = token_check
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", CLOSED_POLICY)
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        # Routed by the path as it was sent: an id may contain an escaped slash.
        scope["path"] = scope["raw_path"].decode("ascii", errors="replace")
        request = Request(scope)
        response = self._judge(request)
        await (response or self._app)(scope, receive, send_guarded)

    def _judge(self, request: Request) -> Response | None:
        headers, path = request.headers, request.scope["path"]
        refusal = judge_head(request.method, headers) or judge_origin(headers, self._token_check is not None)
        if refusal is not None:
            return refuse(refusal)
        if self._token_check is None or path in self._open_paths:
            return None
        given = request.query_params.get("token")
        if path == "/" and given is not None and self._token_check.is_token(given.encode()):
            return self._token_check.enter(request)
        if self._token_check.opens(headers):
            return None
        fact = "this needs the run's state_token, and the request does not have it"
        next_step = "send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in a browser"
        problem = Problem(error=fact, next=next_step)
        return refuse(Refusal(status=401, problem=problem, headers={"www-authenticate": "Bearer"}))


def refuse(refusal: Refusal) -> Response:
    body = msgspec.json.encode(refusal.problem)
    return Response(body, refusal.status, {"cache-control": "no-store", **refusal.headers}, JSON)


def not_found() -> Response:
    problem = Problem(
        error="there is nothing here", next=f"GET /openapi.json lists what there is; {PREFIX}/runs the runs"
    )
    return refuse(Refusal(status=404, problem=problem))
