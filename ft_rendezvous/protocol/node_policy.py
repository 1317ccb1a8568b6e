"""What a node does about its connection, its agent and its end: how long it tries again, when it gives up its agent,
with which outcome it leaves.

Pure decisions. The node's loop, torch's handler and the simulation all ask here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ft_rendezvous.core.model import Outcome, Verdict, VerdictKind
from ft_rendezvous.core.node_step import Progress

FIRST_RETRY_DELAY_S = 0.02
"""The pause after the first failed attempt to connect; it doubles up to a beat."""

GONE_AFTER_S = 0.1
"""How long both ports of a host must refuse until its process is taken for gone."""

HURRY_S = 1.0
"""How long a node beats quickly when its lifeline has ended and another one cannot be connected."""

WEDGED_TIMEOUT_S = 120.0
WEDGED_LEASES = 10
"""An agent is wedged if it is away for the longer of both. To stop workers that ignore SIGTERM takes torch 30 s."""
WEDGED_TICKS = 10
"""While workers train: and not before so many times its usual interval."""
KNOWN_TICKS = 3


@dataclass(frozen=True, slots=True)
class Outage:
    """How long a node has been without a connection, and what its attempts have met."""

    since: float
    tries: int = 0
    refused_since: float | None = None
    """Since when every attempt was refused: the host's machine answers, and no process listens."""

    def after(self, is_refused: bool, now: float) -> Outage:
        """The outage after one more failed attempt."""
        first_refused_at = now if self.refused_since is None else self.refused_since
        return replace(self, tries=self.tries + 1, refused_since=first_refused_at if is_refused else None)


@dataclass(frozen=True, slots=True)
class Retry:
    """Whether to try once more, and the reason in half a sentence."""

    may_try: bool
    reason: str


def decide_retry(outage: Outage, now: float, lease_s: float, join_s: float, *, is_host_gone: bool = False) -> Retry:
    """How long a node tries to reach its store again.

    A host that is silent may only be stuck or cut off, so a node waits for it as long as it would wait to join. A host
    that refuses for a lease has lost its store, and the run with it. If the lifeline has ended and is refused, too, the
    process of the host is gone (`is_host_gone`), and a moment is enough. Whether the node may go on *training*
    meanwhile is another question, which its lease answers.
    """
    refused_s = min(lease_s, GONE_AFTER_S) if is_host_gone else lease_s
    if outage.refused_since is not None and now - outage.refused_since >= refused_s:
        return Retry(False, f"for {now - outage.since:.1f} s: the run ended with its store")
    if now - outage.since >= join_s:
        return Retry(False, f"for {now - outage.since:.1f} s")
    return Retry(True, f"this node tries again for {refused_s if outage.refused_since is not None else join_s:g} s")


@dataclass(slots=True)
class AgentTicks:
    """How often an agent looks after its workers while they train. Torch's agent does so every `--monitor-interval`.

    Seconds are those of beats: time in which the node itself stood still does not count.
    """

    cycle_id: int = 0
    count: int = 0
    silent_s: float = 0.0
    """Since the last tick."""
    longest_s: float = 0.0
    """The longest time between two ticks in this cycle."""

    def note(self, cycle_id: int) -> None:
        """The agent looks after its workers."""
        if cycle_id != self.cycle_id:
            self.cycle_id, self.count, self.longest_s = cycle_id, 0, 0.0
        elif self.count > 0:
            self.longest_s = max(self.longest_s, self.silent_s)
        self.count, self.silent_s = self.count + 1, 0.0

    def pass_time(self, training_in: int, gap_s: float) -> None:
        """A beat was sent. `training_in` is the cycle in which workers train; 0: no tick is to be expected."""
        self.silent_s = self.silent_s + gap_s if training_in and training_in == self.cycle_id else 0.0

    def are_over(self, lease_s: float) -> bool:
        """Whether the agent hangs. It must have ticked a few times, so that its usual interval is known."""
        limit_s = max(WEDGED_TIMEOUT_S, WEDGED_LEASES * lease_s, WEDGED_TICKS * self.longest_s)
        return self.count >= KNOWN_TICKS and self.silent_s >= limit_s


def is_wedged(away_s: float, lease_s: float, health_check_s: float) -> bool:
    """Whether an agent does not come back any more.

    It was asked to stop its workers so long ago, and has not called since. Its node would beat for ever, and the run
    would count on it. Only time in which the node itself ran counts. The agent may check its health before it comes
    back, which takes `health_check_s` at most.
    """
    return away_s >= max(WEDGED_TIMEOUT_S, WEDGED_LEASES * lease_s) + health_check_s


def decide_outcome(outcome: Outcome, verdict: Verdict | None, progress: Progress, is_going: bool) -> Outcome:
    """With which outcome a node says goodbye.

    Torch ends an agent without an error also when it leaves early: that is no success. A node succeeds when the run has
    a verdict, or when its own workers ended well in the last place it took.
    """
    has_finished = progress.finished_in > 0 and progress.finished_in == progress.trained_in
    if outcome is not Outcome.SUCCEEDED or verdict is not None or has_finished:
        return outcome
    return Outcome.DRAINED if is_going else Outcome.LEFT


def ends_well(verdict: Verdict, is_going: bool) -> bool:
    """Whether a node ends well with such a verdict: also with a cancelled run, if the node was asked to go."""
    return verdict.kind is VerdictKind.SUCCEEDED or (verdict.kind is VerdictKind.CANCELLED and is_going)
