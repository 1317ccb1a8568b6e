"""An agent for the tests of the reaper: it starts a reaper and two workers, then obeys the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.env_names import MARKER_VARIABLE


def main(marker: str, *command: str) -> None:
    reaper = Reaper.start(marker)
    environ = {**os.environ, MARKER_VARIABLE: marker}
    workers = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    print(json.dumps({"reaper": reaper.pid, "workers": [worker.pid for worker in workers]}), flush=True)
    for line in sys.stdin:
        if line.strip() == "dismiss":
            reaper.dismiss()
        print(line.strip(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
