"""The real server in a process of its own, fed with lines by a test as the coordinator feeds it.

Lines come on stdin; each `RunBegan` begins a run of its own, so that a page can be shown several. Ends with its stdin.
"""

from __future__ import annotations

import argparse
import sys
import threading

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.events import decode_line
from ft_rendezvous.state.web.app import make_app
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.serving import Serving, serve

RUNS = "/api/ft/v1/runs"


class Several:
    """Several runs behind one address."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.live_runs: list[LiveRun] = [LiveRun()]
        self.apps: list[ASGIApp] = [make_app(self.live_runs[0], token)]
        self.ids: dict[str, ASGIApp] = {}

    def take(self, line: bytes) -> None:
        began = msgspec.json.decode(line)["event"] if b'"kind":"RunBegan"' in line[:200] else None
        if began is not None:
            if self.ids:
                self.live_runs.append(LiveRun())
                self.apps.append(make_app(self.live_runs[-1], self.token))
            self.ids[began["epoch"]] = self.apps[-1]
        self.live_runs[-1].take(decode_line(line), line)

    def end(self) -> None:
        for live_run in self.live_runs:
            live_run.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.apps[0]
        path = scope["path"]
        if path.startswith(f"{RUNS}/"):
            app = self.ids.get(path.removeprefix(f"{RUNS}/").partition("/")[0], app)
        elif path == RUNS and len(self.apps) > 1:
            runs = [live_run.read(lambda state: view.view_run(state, state.time_ns)) for live_run in self.live_runs]
            await Response(msgspec.json.encode(runs), media_type="application/json")(scope, receive, send)
            return
        await app(scope, receive, send)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--token")
    options = parser.parse_args()
    several = Several(options.token)

    def feed(serving: Serving) -> None:
        print(serving.port, flush=True)

        def read() -> None:
            for line in sys.stdin.buffer:
                several.take(line)
            several.end()
            serving.stop()

        threading.Thread(target=read, daemon=True).start()

    serve(several, "127.0.0.1", options.port, feed)


if __name__ == "__main__":
    main()
