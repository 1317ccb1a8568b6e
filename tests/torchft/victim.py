"""Trains as the example does, but stops or kills itself after its first quorum, before it connects to the other groups.

usage: victim.py SIGNAL OPTIONS_OF_THE_EXAMPLE...
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from torchft import ProcessGroupGloo

from tests.torchft.groups_rig import EXAMPLE


def main() -> None:
    signum = signal.Signals[sys.argv.pop(1)]
    configure = ProcessGroupGloo.configure

    def fail(process_group: ProcessGroupGloo, *args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signum)
        configure(process_group, *args, **kwargs)

    ProcessGroupGloo.configure = fail
    runpy.run_path(str(EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
