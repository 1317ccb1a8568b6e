"""An agent for the tests of the reaper: it starts a reaper and two workers, then obeys the test.

Its workers are programs, or with the command `fork` forks of itself, each of which forks once more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.env_names import MARKER_VARIABLE


def _start(marker: str, command: tuple[str, ...]) -> int:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, MARKER_VARIABLE: marker},
        start_new_session=True,
    )
    return process.pid


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.fork()
        signal.pause()
    return pid


def main(marker: str, *command: str) -> None:
    reaper = Reaper.start(marker)
    workers = [_fork() if command == ("fork",) else _start(marker, command) for _ in range(2)]
    print(json.dumps({"reaper": reaper.pid, "workers": workers}), flush=True)
    for line in sys.stdin:
        if line.strip() == "dismiss":
            reaper.dismiss()
        print(line.strip(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
