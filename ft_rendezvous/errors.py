"""All errors of this package, by who must act.

    FtError
    ├── ConfigError          the user: a setting, an endpoint, a launch command is wrong
    ├── StoreUnavailable     the cluster: the store host is gone, silent, or not ours
    ├── Refused              the user: the coordinator refused this node, and says why
    ├── Unhealthy            the cluster: the health check of this node failed
    ├── AgentWedged          the cluster: the agent of this node cannot stop its workers
    ├── PlaceLost            no action: this worker has no place any more; its agent stops it
    ├── StateUnavailable     the user or the cluster: the state of a run cannot be read
    ├── RunClosed            no action: the run is over; carries its verdict
    └── ProtocolBug          us: an invariant of the protocol does not hold

Errors carry fields. A message is the fact, then the next step. Only `agent/handler` translates to torch's error types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ft_rendezvous.core.model import Verdict


class FtError(Exception):
    """Base class of all errors of this package."""


class ConfigError(FtError):
    """A setting or a command line that cannot work. The message says what to change."""


class StoreUnavailable(FtError):
    """The store cannot be reached, does not answer, or is not the store with which this run began."""

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
    """This node is not healthy and has withdrawn from the run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this node is unhealthy and has withdrawn: {reason}")
        self.reason = reason


class AgentWedged(FtError):
    """The agent did not come back for so long after its cycle was over that its node has said goodbye."""

    def __init__(self, cycle_id: int, away_s: float) -> None:
        super().__init__(f"the agent did not stop its workers of cycle {cycle_id} for {away_s:.0f} s: this node leaves")
        self.cycle_id = cycle_id
        self.away_s = away_s


class PlaceLost(FtError):
    """The place of this worker is given away: its group is lost, or it stood still for longer than a lease."""

    def __init__(self) -> None:
        super().__init__("the place of this worker is lost: it joins no quorum, and its agent stops it")


class StateUnavailable(FtError):
    """The state of a run is not where it was looked for. The message says where else to look, or what to do."""


class RunClosed(FtError):
    """The run is over."""

    def __init__(self, run_id: str, verdict: Verdict) -> None:
        super().__init__(f"run {run_id!r} is closed: {verdict}")
        self.run_id = run_id
        self.verdict = verdict


class ProtocolBug(FtError):
    """An invariant of this package does not hold. Please report it, with the log."""
