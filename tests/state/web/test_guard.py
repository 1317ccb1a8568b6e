"""Who may ask: the token, the host, other people's pages."""

from __future__ import annotations

import socket

import httpx
import pytest

from ft_rendezvous.state.web.access import cookie_name, is_here
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.page_files import policy_for
from tests.state.recording import eventful_seed, record_seed
from tests.state.web.servers import API, client_of, live_run_of, serving

TOKEN = "s3cret/+ü"
PATHS = ["/", f"{API}/runs", f"{API}/runs/sim", f"{API}/runs/sim/nodes", f"{API}/runs/sim/cycles", "/metrics"]
PATHS += [f"{API}/runs/sim/events?follow=0", "/openapi.json", "/index.html", "/none"]


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {token}".strip().encode()}


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_told(path: str) -> None:
    with client_of(live_run_of(record_seed(eventful_seed()).lines), token="right") as client:
        for headers in ({}, bearer("wrong"), bearer(""), bearer("righ"), {b"authorization": b"Basic cmlnaHQ="}):
            response = client.get(path, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert set(response.json()) == {"error", "next"}
        assert client.get(path, headers=bearer("right")).status_code == (404 if path == "/none" else 200)


def test_a_token_may_contain_anything() -> None:
    with client_of(LiveRun(), token=TOKEN) as client:
        assert client.get("/", headers=bearer(TOKEN)).status_code == 200
        assert client.get("/", params={"token": TOKEN}).status_code == 200
        assert client.get("/").status_code == 200


def test_health_needs_no_token() -> None:
    with client_of(LiveRun(), token="right") as client:
        assert client.get("/healthz").status_code == 200


def test_a_browser_enters_once_and_is_remembered() -> None:
    with client_of(live_run_of(record_seed(eventful_seed()).lines), token="right") as client:
        assert client.get("/?token=wrong").status_code == 401
        assert not client.cookies
        entered = client.get("/?token=right")
        assert entered.status_code == 200
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "right" not in cookie
        assert 'content="0; url=/"' in entered.text
        for path in ("/", f"{API}/runs", "/metrics"):
            assert client.get(path).status_code == 200
        client.cookies.clear()
        assert client.get("/").status_code == 401
        assert client.get(f"{API}/runs?token=right").status_code == 401


def test_the_cookie_of_another_token_or_port_opens_nothing() -> None:
    with client_of(LiveRun(), token="one") as first, client_of(LiveRun(), token="two") as second:
        first.get("/?token=one")
        second.cookies.update(first.cookies)
        assert second.get("/").status_code == 401
        value = next(iter(first.cookies.jar)).value
        second.cookies.set(cookie_name({"host": second.base_url.netloc.decode()}), value or "")
        assert second.get("/").status_code == 401
        assert second.get("/", headers={"cookie": "ft_state=; ==;\x7f"}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_somebody_else_resolves_is_no_way_in(host: str) -> None:
    with client_of(LiveRun()) as client:
        response = client.get(f"{API}/runs", headers={"host": host})
        assert response.status_code == 403
        assert "state_token" in response.json()["next"]
    with client_of(LiveRun(), token="right") as client:
        assert client.get(f"{API}/runs", headers={b"host": host.encode() or b"x", **bearer("right")}).status_code == 200


def test_hosts_that_no_name_server_decides_about() -> None:
    assert all(map(is_here, ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8", "10.1.2.3", "a.localhost"]))
    assert not any(
        map(is_here, ["", "a@localhost", "localhost/x", "[::1", "::1", "evil", "0x7f.1", "local host", "[x]"])
    )


def test_pages_of_other_origins_get_nothing() -> None:
    with client_of(LiveRun()) as client:
        foreign: list[dict[str, str]] = [
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{client.base_url.port + 1 if client.base_url.port else 1}"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        ]
        for headers in foreign:
            response = client.get(f"{API}/runs", headers=headers)
            assert response.status_code == 403, headers
            assert not [name for name in response.headers if name.startswith("access-control")]
        own: list[dict[str, str]] = [
            {"origin": str(client.base_url).rstrip("/")},
            {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
            {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        ]
        for headers in own:
            assert client.get(f"{API}/runs", headers=headers).status_code == 200, headers


def test_scripts_inside_the_page_are_allowed_by_what_they_are() -> None:
    policy = policy_for(b"<script>a()</script><script type=module>\nb()</script><script src=c.js></script>")
    assert policy.count("'sha256-") == 2
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]


def test_a_taken_port_is_an_error_of_the_system() -> None:
    from ft_rendezvous.state.web.serving import serve  # noqa: PLC0415

    with serving(LiveRun()) as server, pytest.raises(OSError):
        serve(lambda *_: None, "127.0.0.1", server.port, lambda _: None)  # type: ignore[arg-type]


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_may_be_a_newer_one() -> None:
    with serving(LiveRun(), addr="::1") as server:
        assert httpx.get(f"http://[::1]:{server.port}{API}/runs", trust_env=False).json() == []
