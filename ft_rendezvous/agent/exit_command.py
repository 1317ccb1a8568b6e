"""The user's `exit_command`: what an agent runs last on its node."""

from __future__ import annotations

import logging
import subprocess

from ft_rendezvous.core.model import Verdict

log = logging.getLogger("ft_rendezvous")


def run_exit_command(command: str, verdict: Verdict | None) -> None:
    """Run the command to its end, however long it takes. It finds in its environment how the run ended.

    A run without a verdict counts as retryable: this node was cut off, or it left early.
    """
    kind, is_retryable = ("unknown", True) if verdict is None else (str(verdict.kind), verdict.is_retryable)
    environment = (f"FT_VERDICT={kind}", f"FT_IS_RETRYABLE={int(is_retryable)}")
    log.debug("running exit_command: %s", command)
    subprocess.run(("env", *environment, "/bin/sh", "-c", command), stdin=subprocess.DEVNULL, check=False)
