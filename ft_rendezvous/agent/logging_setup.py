"""Where our log lines go, if the program that runs the agent has not configured logging."""

from __future__ import annotations

import logging

from ft_rendezvous.config.load import log_level


def set_up_logging() -> None:
    """Log to standard error, as torch's elastic package does. Does nothing where logging is configured."""
    log = logging.getLogger("ft_rendezvous")
    if log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[ft %(asctime)s %(levelname)s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(log_level())
    log.propagate = False
