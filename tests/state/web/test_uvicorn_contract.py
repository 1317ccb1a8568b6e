"""What we use of uvicorn's internals: docs/decisions/uvicorn.md says why, and what to do if a test fails here."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from tests.state.web.servers import ROOT


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def assigned_in(method: Any) -> set[str]:
    """The attributes that a method gives its object."""
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", inspect.getsource(method)))


def test_the_installed_version_is_in_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [each for each in project["dependencies"] if each.startswith("uvicorn")]
    bounds = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", wanted)
    assert bounds is not None, "uvicorn has no upper bound, and we subclass its internals"
    assert numbers(bounds[1]) <= numbers(version("uvicorn")) < numbers(bounds[2])


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (H11Protocol.__init__, ["self", "config", "server_state", "app_state", "_loop"]),
        (H11Protocol.connection_made, ["self", "transport"]),
        (H11Protocol.resume_writing, ["self"]),
        (H11Protocol.send_400_response, ["self", "msg"]),
        (H11Protocol.shutdown, ["self"]),
        (uvicorn.Server.capture_signals, ["self"]),
        (uvicorn.Server.startup, ["self", "sockets"]),
        (uvicorn.Server.on_tick, ["self", "counter"]),
        (uvicorn.Server.shutdown, ["self", "sockets"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_we_override_is_there(kind: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(kind).parameters) == parameters


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (H11Protocol, {"app", "connections", "loop", "conn", "transport", "flow", "cycle"}),
        (RequestResponseCycle, {"response_complete"}),
        (FlowControl, {"write_paused"}),
        (ServerState, {"connections", "tasks"}),
        (uvicorn.Server, {"server_state", "should_exit"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_we_read_is_there(kind: Any, names: set[str]) -> None:
    assert names <= assigned_in(kind.__init__)


def test_what_we_rely_on_is_called_as_we_think() -> None:
    server = uvicorn.Server
    assert "self.servers" in inspect.getsource(server.startup)
    assert "asyncio.sleep(0.1)" in inspect.getsource(server.main_loop), "ten ticks in a second"
    assert "self.on_tick(counter)" in inspect.getsource(server.main_loop)
    assert "self.capture_signals()" in inspect.getsource(server.serve)
    assert "self.send_400_response(" in inspect.getsource(H11Protocol.handle_events)
    assert "app = self.app" in inspect.getsource(H11Protocol.handle_events)
    assert "self.connections.add(self)" in inspect.getsource(H11Protocol.connection_made)
