"""The keeper: a process beside the store host that writes a run's events to a log and serves them over HTTP.

It reads its configuration and then events from standard input, where `keeper_pipe` writes them, and ends with it. No
fault of this process can reach the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.state.model.events import Event, decode_line
from ft_rendezvous.state.record.export_log import ExportLog
from ft_rendezvous.state.record.keeper_pipe import KeeperConfig

log = logging.getLogger("ft_rendezvous")

FLUSH_TIMEOUT_S = 4.0
"""How long a slow disk may take at the end."""
FOLLOWERS_GRACE_S = 1.0
"""How long clients that follow may take to read the end."""
NICENESS = 5

Sink = Callable[[Event, bytes], None]


def keep(config: KeeperConfig, lines: Iterator[bytes]) -> None:
    """Write and serve the events that come, until the input ends."""
    export = None if config.folder is None else ExportLog(Path(config.folder), config.log_bytes)
    sinks: list[Sink] = [] if export is None else [export.put]
    if config.port is None:
        _pass_on(lines, sinks)
    else:
        _show(config, config.port, lines, sinks)
    if export is not None and not export.close(FLUSH_TIMEOUT_S):
        log.warning("the disk of %s is too slow: the last events are missing there", config.folder)


def _pass_on(lines: Iterator[bytes], sinks: list[Sink]) -> None:
    """Decode each line once. A line that is no event ends this process: the next one begins with the whole state."""
    for line in lines:
        if not line.endswith(b"\n"):
            return  # The host died in the middle of a line.
        event = decode_line(line)
        for sink in sinks:
            sink(event, line)


def _show(config: KeeperConfig, port: int, lines: Iterator[bytes], sinks: list[Sink]) -> None:
    """Serve HTTP in this thread while another one reads."""
    # The web stack takes a moment to import, and a keeper that only writes a log does not need it.
    from ft_rendezvous.state.web.app import make_app  # noqa: PLC0415
    from ft_rendezvous.state.web.live_run import LiveRun  # noqa: PLC0415
    from ft_rendezvous.state.web.serving import Serving, serve  # noqa: PLC0415

    live_run = LiveRun()
    over = threading.Event()

    def read() -> None:
        try:
            _pass_on(lines, [*sinks, live_run.take])
        finally:
            live_run.end()
            over.set()

    def on_ready(serving: Serving) -> None:
        log.info("the state of this run is at http://%s", format_endpoint(serving.addr, serving.port))
        threading.Thread(target=_stop_at_end, args=(over, serving.stop), daemon=True).start()

    reader = threading.Thread(target=read, name="ft-keeper-reader", daemon=True)
    reader.start()
    try:
        serve(make_app(live_run, config.token), config.addr, port, on_ready)
    except OSError as error:
        text = "the state cannot be served at %s: %s: choose another state_port next time; training goes on"
        log.warning(text, format_endpoint(config.addr, port), error.strerror or error)
    reader.join()


def _stop_at_end(over: threading.Event, stop: Callable[[], None]) -> None:
    over.wait()
    threading.Event().wait(FOLLOWERS_GRACE_S)
    stop()


def main() -> None:
    # Signals are for the agent; this process ends with its input, so that the last events are not lost.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    logging.basicConfig(format="[ft %(asctime)s %(levelname)s] %(message)s", level=logging.INFO, stream=sys.stderr)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=KeeperConfig)
    keep(config, iter(sys.stdin.buffer))
    sys.stderr.flush()
    os._exit(0)  # A disk that hangs must not keep this process.


if __name__ == "__main__":
    main()
