"""A run through the HTTP API of its keeper, with the standard library alone."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from ft_rendezvous.errors import StateUnavailable
from ft_rendezvous.state.model.events import decode_line
from ft_rendezvous.state.model.records import SCHEMA_VERSION, Cycle, Node, Run
from ft_rendezvous.state.model.version_one import CycleOne, convert_cycle
from ft_rendezvous.state.read.sources import Picture

T = TypeVar("T")

API = "/api/ft/v1"
ANSWER_TIMEOUT_S = 10.0
"""For an answer. A server with thousands of nodes answers in a tenth of a second."""
STREAM_TIMEOUT_S = 60.0
"""How long a stream of events may be silent: there is one per lease as long as the run lives."""
RETRY_DELAY_S = 0.5
RETRIES = 3
"""A broken stream is taken up again where it broke; this many times in a row without an event."""


class _Refusal(msgspec.Struct):
    error: str = ""
    next: str = ""


class _RecordVersion(msgspec.Struct):
    schema_version: int = SCHEMA_VERSION


class HttpSource:
    """One run at `http://host:port`."""

    def __init__(
        self, url: str, name: str | None = None, token: str | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme != "http" or not host:
            raise StateUnavailable(f"{url} is not the address of a state API: it looks like http://HOST:PORT")
        self._address = f"http://{parts.netloc.rpartition('@')[2]}"
        self._host, self._port = host, port or 80
        given = parse_qs(parts.query).get("token")
        self._token = given[0] if given else token
        self._sleep = sleep
        self._run_id = self._choose(name)
        self._last: Picture | None = None

    def look(self) -> Picture:
        said = self._get(f"/runs/{self._run_id}", Run)
        self._check_version(said)
        # The records of an older server become those of now.
        run = msgspec.structs.replace(said, schema_version=SCHEMA_VERSION)
        if self._last is not None and self._last.run.event_id == run.event_id:
            # Nothing has happened: the nodes are not read again.
            return msgspec.structs.replace(self._last, run=run)
        self._last = Picture(
            run=run,
            cycles=self._get_cycles(said.schema_version),
            nodes=self._get(f"/runs/{self._run_id}/nodes", list[Node]),
        )
        return self._last

    def lines(self, after: int, is_followed: bool) -> Iterator[bytes]:
        has_ended, failures = False, 0
        while True:
            try:
                for line in self._stream(after, is_followed):
                    event = decode_line(line)
                    after, failures = max(after, event.event_id), 0
                    has_ended = has_ended or type(event.event).__name__ in ("RunEnded", "HostLeft")
                    yield line
            except (OSError, http.client.HTTPException) as error:
                if not is_followed or (failures >= RETRIES and not has_ended):
                    raise self._gone(error) from error
            except msgspec.MsgspecError as error:
                raise StateUnavailable(f"{self._address} sent a line that is no event: {error}") from error
            if not is_followed or has_ended:
                return
            if failures >= RETRIES:
                raise StateUnavailable(f"{self._address} sends no more events: the run has ended, or its host is lost")
            failures += 1
            self._sleep(RETRY_DELAY_S)

    # --- requests ---------------------------------------------------------------------------------------

    def _choose(self, name: str | None) -> str:
        runs = self._get("/runs", list[Run])
        if not runs:
            raise StateUnavailable(f"{self._address} knows of no run yet: try again in a moment")
        for run in runs:
            if name in (None, run.name, run.id):
                self._check_version(run)
                return quote(run.id, safe="")
        known = ", ".join(run.name for run in runs)
        raise StateUnavailable(f"{self._address} knows of no run {name!r}: there is {known}")

    def _get_cycles(self, version: int) -> list[Cycle]:
        path = f"/runs/{self._run_id}/cycles"
        if version > 1:
            return self._get(path, list[Cycle])
        return [convert_cycle(cycle) for cycle in self._get(path, list[CycleOne])]

    def _get(self, path: str, kind: type[T]) -> T:
        try:
            with closing(http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_TIMEOUT_S)) as connection:
                connection.request("GET", API + path, headers=self._headers())
                response = connection.getresponse()
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        self._check(response.status, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unread(body, error) from error

    def _stream(self, after: int, is_followed: bool) -> Iterator[bytes]:
        """The lines of one connection's server-sent events."""
        path = f"{API}/runs/{self._run_id}/events?after={after}" + ("" if is_followed else "&follow=0")
        with closing(http.client.HTTPConnection(self._host, self._port, timeout=STREAM_TIMEOUT_S)) as connection:
            connection.request("GET", path, headers=self._headers() | {"Accept": "text/event-stream"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                self._check(response.status, response.read())
            while line := response.readline():
                # An event's JSON is one line, and so is its data.
                if line.startswith(b"data:"):
                    yield line.removeprefix(b"data:").strip() + b"\n"

    def _headers(self) -> dict[str, str]:
        return {} if not self._token else {"Authorization": f"Bearer {self._token}"}

    def _check(self, status: int, body: bytes) -> None:
        if status == http.client.OK:
            return
        try:
            refusal = msgspec.json.decode(body, type=_Refusal)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            refusal = _Refusal()
        fact = refusal.error or f"it answers {status}: is this a state API?"
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN) and not self._token:
            refusal.next = "set FT_STATE_TOKEN to the run's state_token"
        raise StateUnavailable(f"{self._address}: {fact}" + (f": {refusal.next}" if refusal.next else ""))

    def _unread(self, body: bytes, error: Exception) -> StateUnavailable:
        try:
            first = msgspec.json.decode(body, type=list[_RecordVersion] | _RecordVersion)
            version = (
                first.schema_version
                if isinstance(first, _RecordVersion)
                else max(each.schema_version for each in first)
            )
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            version = 0
        if version > SCHEMA_VERSION:
            return self._newer(version)
        return StateUnavailable(f"{self._address} does not answer as a state API does: {error}")

    def _check_version(self, run: Run) -> None:
        if run.schema_version > SCHEMA_VERSION:
            raise self._newer(run.schema_version)

    def _newer(self, version: int) -> StateUnavailable:
        return StateUnavailable(
            f"{self._address} speaks schema version {version}, and this ft-rendezvous up to {SCHEMA_VERSION}: "
            "use the version of the run"
        )

    def _gone(self, error: Exception) -> StateUnavailable:
        fact = "no answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return StateUnavailable(f"{self._address} cannot be reached ({fact}): the run has ended, or its host is lost")
