"""Everything this package raises, by who must act.

    FtError
    ├── ConfigError          the user: a setting, an endpoint, a launch command is wrong
    ├── StoreUnavailable     the cluster: the store host is gone, silent, or not ours
    ├── Refused              the user: the coordinator turned this node away, and says why
    ├── Unhealthy            the cluster: this node found itself unfit to train
    ├── StateUnavailable     the user or the cluster: what is known of a run cannot be had from there
    ├── RunClosed            nobody: the run is over; carries its verdict
    └── ProtocolBug          us: an invariant of the protocol does not hold

Errors carry fields; the message is the fact, then the next step. Translation to torch's error types
happens in `handler` and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ft_rendezvous.core.model import Verdict


class FtError(Exception):
    """Base of all errors of this package."""


class ConfigError(FtError):
    """A setting or a command line that cannot work; the message says what to change."""


class StoreUnavailable(FtError):
    """The store cannot be reached, went silent, or is not the one this run began with."""

    def __init__(self, endpoint: str, fact: str, *, is_refused: bool = False) -> None:
        super().__init__(f"store {endpoint}: {fact}")
        self.endpoint = endpoint
        self.fact = fact
        self.is_refused = is_refused
        """The machine answers, and no process listens at the port."""


class Refused(FtError):
    """The coordinator does not admit this node."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this node was refused: {reason}")
        self.reason = reason


class Unhealthy(FtError):
    """This node is not fit to train and has withdrawn from the run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this node is unhealthy and has withdrawn: {reason}")
        self.reason = reason


class StateUnavailable(FtError):
    """What is known of a run cannot be had where it was looked for; the message says where else, or what to do."""


class RunClosed(FtError):
    """The run is over."""

    def __init__(self, run_id: str, verdict: Verdict) -> None:
        super().__init__(f"run {run_id!r} is closed: {verdict}")
        self.run_id = run_id
        self.verdict = verdict


class ProtocolBug(FtError):
    """An invariant of ours does not hold; please report it with the log."""
