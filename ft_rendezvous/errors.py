"""All errors of this package, by who must act.

    FtError
    ├── ConfigError          the user: a setting, an endpoint, a launch command is wrong
    ├── StoreUnavailable     the cluster: the store host is gone, silent, or not ours
    ├── HeadLost             the cluster: the head of a Ray cluster is gone, and all of Ray with it
    ├── Refused              the user: the coordinator refused this node, and says why
    ├── Unhealthy            the cluster: the health check of this node failed
    ├── AgentWedged          the cluster: the agent of this node cannot stop its workers
    ├── PlaceLost            no action: this worker has no place any more; its agent stops it
    ├── StateUnavailable     the user or the cluster: the state of a run cannot be read
    ├── UpdateError          the caller: an update of several parties failed; it says where
    ├── CleanupError         the caller: a party could not be cleaned up after an update; part of an UpdateError
    ├── PartyDead            no action: raised by a party of an update that is gone
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


class HeadLost(FtError):
    """The head of a Ray cluster does not answer any more. No call of Ray gets an answer then."""

    def __init__(self, head: str, silent_s: float, next_step: str) -> None:
        super().__init__(f"the head of the Ray cluster at {head} has not answered for {silent_s:.0f} s: {next_step}")
        self.head = head


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
    """The agent did not call for so long that its node has said goodbye: it should have come back after its cycle was
    over, or looked after its workers while they train."""

    def __init__(self, cycle_id: int, away_s: float, is_over: bool = True) -> None:
        what = "stop" if is_over else "look after"
        super().__init__(
            f"the agent did not {what} its workers of cycle {cycle_id} for {away_s:.0f} s: this node leaves"
        )
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


class CleanupError(FtError):
    """An undo, finish or abort of a party failed. The cause is its own error."""

    def __init__(self, what: str, step: str, party: str, cause: BaseException) -> None:
        super().__init__(f"{what} of step {step!r} failed on party {party!r}: {describe_error(cause)}")
        self.what = what
        """`undo`, `finish` or `abort`."""
        self.step = step
        self.party = party
        self.__cause__ = cause


class UpdateError(FtError):
    """An update of several parties failed. The cause is the first error; errors of the clean-up are notes."""

    def __init__(self, version: int, fact: str, *, step: str | None = None, party: str | None = None) -> None:
        super().__init__(f"the update to version {version} failed: {fact}")
        self.version = version
        self.step = step
        """Of the first error. None if the flow itself failed, or if there were too few parties to begin."""
        self.party = party
        self.cleanup_errors: tuple[CleanupError, ...] = ()
        self.failed: tuple[str, ...] = ()
        """The parties that failed."""
        self.updated: tuple[str, ...] = ()
        """The parties that have the version now."""
        self.is_recoverable = False
        """Enough parties have this version, or the one before, and the next update may begin."""


class PartyDead(FtError):
    """What a party of an update speaks for is gone. A method of the party raises it."""


class ProtocolBug(FtError):
    """An invariant of this package does not hold. Please report it, with the log."""


def describe_error(error: BaseException) -> str:
    """The type and the text of an error, which is not ours: its `__str__` may raise, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # It is the error of a user's code, and only its text is missing.
        return f"{type(error).__name__}, which has no text"
