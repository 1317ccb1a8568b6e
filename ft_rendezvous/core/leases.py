"""Leases: which nodes are alive. The observer judges by changes of a beat that it sees on its own clock.

No timestamp of another machine is used, so clocks may be hours apart. The promise has two sides:

- The coordinator holds a `LeaseTable`. It drops a node whose beat did not change for `lease_s`.
- The node holds a `Pulse`. It stops trusting its place `lease_s` after it *sent* the last acknowledged beat. A node
  sends a beat before the coordinator can see it, so the node stops first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ACK_SHIFT = 32
"""The low bits of a beat counter count beats. The next ones hold the number of the last event the node acted on."""
PROGRESS_SHIFT = 80
"""The highest bits hold the progress of the node's workers, if it is watched."""
SECONDS_BITS = 20
"""Of an age, and of a timeout: 12 days."""
RANK_BITS = 24
MOST_STEPS = (1 << 60) - 1


@dataclass(frozen=True, slots=True)
class WorkersProgress:
    """How far the slowest worker of a node is."""

    step: int | None
    age_s: int
    """Seconds since its last progress."""
    rank: int | None = None
    """Its global rank."""
    late_after_s: int | None = None
    """The age at which this node finds a rank late. None: never."""


def acknowledged(counter: int) -> int:
    """The event number in a beat counter."""
    return counter >> ACK_SHIFT & (1 << PROGRESS_SHIFT - ACK_SHIFT) - 1


def pack_progress(progress: WorkersProgress | None) -> int:
    """Progress as a part of a beat counter. The lowest bit says that there is any."""
    if progress is None:
        return 0
    packed = _pack(progress.step, MOST_STEPS)
    packed = packed << RANK_BITS | _pack(progress.rank, (1 << RANK_BITS) - 2)
    packed = packed << SECONDS_BITS | _pack(progress.late_after_s, (1 << SECONDS_BITS) - 2)
    packed = packed << SECONDS_BITS | min(max(0, progress.age_s), (1 << SECONDS_BITS) - 1)
    return packed << 1 | 1


def _pack(value: int | None, most: int) -> int:
    """0 for None, else one more than the value."""
    return 0 if value is None else 1 + min(max(0, value), most)


def progress_in(counter: int) -> WorkersProgress | None:
    """The progress in a beat counter."""
    packed = max(0, counter) >> PROGRESS_SHIFT
    if not packed & 1:
        return None
    packed, age_s = _split(packed >> 1, SECONDS_BITS)
    packed, late_after_s = _split(packed, SECONDS_BITS)
    step, rank = _split(packed, RANK_BITS)
    return WorkersProgress(_unpack(step), age_s, _unpack(rank), _unpack(late_after_s))


def _split(packed: int, bits: int) -> tuple[int, int]:
    return packed >> bits, packed & (1 << bits) - 1


def _unpack(packed: int) -> int | None:
    return packed - 1 if packed else None


@dataclass(slots=True)
class Lease:
    counter: int
    seen_at: float
    behind_since: float | None = None
    """Since when the coordinator waits for the node to act on event `behind_on`. None if it does not wait."""
    behind_on: int = 0


@dataclass(slots=True)
class LeaseTable:
    """What the coordinator has seen of each live node's beat."""

    lease_s: float
    beat_s: float
    leases: dict[str, Lease] = field(default_factory=dict)
    looked_at: float | None = None
    paused_s: float = 0.0
    """How late the last reading came, if by more than a beat; else 0."""
    stall_s: float = 0.0
    """How late the last reading came, if so late that nodes may have lost their leases by their own clocks; else 0."""

    def grant(self, incarnation: str, now: float) -> None:
        """Start a lease. No beat has been seen yet, so the counter is below every real value."""
        self.leases[incarnation] = Lease(counter=-1, seen_at=now)

    def revoke(self, incarnation: str) -> None:
        self.leases.pop(incarnation, None)

    def observe(self, counters: Mapping[str, int], now: float, planned_gap_s: float, published: int) -> None:
        """Use one reading of the beats. `published` is the newest event.

        If the observer itself was paused, it saw no beats, and the nodes are not at fault. So when this reading comes
        more than one beat later than planned, every lease starts again.
        """
        gap_s = 0.0 if self.looked_at is None else now - self.looked_at
        was_paused = gap_s > planned_gap_s + self.beat_s
        self.paused_s = gap_s - planned_gap_s if was_paused else 0.0
        # The last beat before the pause may have been sent a whole beat earlier.
        self.stall_s = gap_s if gap_s + self.beat_s >= self.lease_s else 0.0
        self.looked_at = now
        for incarnation, lease in self.leases.items():
            counter = counters.get(incarnation, lease.counter)
            if counter != lease.counter:
                lease.counter = counter
                lease.seen_at = now
            elif was_paused:
                lease.seen_at = now
            acted = acknowledged(max(counter, 0))
            if acted >= published:
                lease.behind_since = None
            elif lease.behind_since is None or was_paused or acted >= lease.behind_on:
                # Wait for one event at a time: in fast cycles a newer one is always published already.
                lease.behind_since, lease.behind_on = now, published

    def judge_leases(self, now: float) -> list[str]:
        """Incarnations whose lease is over. Call `observe` with the same `now` first."""
        return [name for name, lease in self.leases.items() if now - lease.seen_at >= self.lease_s]

    def judge_silent(self, now: float) -> dict[str, float]:
        """Incarnations that used up half of their lease or more, with the seconds since their last beat."""
        ages = self.ages(self.leases, now)
        return {name: age for name, age in ages.items() if age >= self.lease_s / 2}

    def judge_deaf(self, now: float) -> list[str]:
        """Incarnations that beat, but have not acted on a published event for two leases.

        They do not receive events: they would train in a world that is over, or wait for ever.
        """
        allowed_s = 2 * self.lease_s
        return [
            name
            for name, lease in self.leases.items()
            if lease.behind_since is not None and now - lease.behind_since >= allowed_s
        ]

    def first_expiry(self) -> float | None:
        """When the next lease ends, if its node does not beat again."""
        seen_at = min((lease.seen_at for lease in self.leases.values()), default=None)
        return None if seen_at is None else seen_at + self.lease_s

    def acknowledged_by_all(self, floor: int) -> int:
        """The newest event that every live node has acted on, never below `floor`.

        A node that has not acknowledged any event yet keeps the result at the floor.
        """
        lowest = min((acknowledged(max(lease.counter, 0)) for lease in self.leases.values()), default=floor)
        return max(lowest, floor)

    def find_progress(self, incarnations: Iterable[str]) -> dict[str, WorkersProgress]:
        """How far the workers of these nodes are, as far as their beats say so."""
        found = {name: progress_in(self.leases[name].counter) for name in incarnations if name in self.leases}
        return {name: progress for name, progress in found.items() if progress is not None}

    def ages(self, incarnations: Iterable[str], now: float) -> dict[str, float]:
        """Seconds since the last beat that was seen of each node."""
        return {name: now - self.leases[name].seen_at for name in incarnations if name in self.leases}


@dataclass(slots=True)
class Pulse:
    """A node's own beat: the next counter, the reply to expect, and whether the lease may still be trusted."""

    lease_s: float
    alive_until: float
    counter: int = 0
    is_fenced: bool = False

    def next_counter(self, acted_upon: int, progress: WorkersProgress | None = None) -> int:
        """The counter after the next beat. It carries the number of the last event acted upon, and progress."""
        beats = (self.counter & (1 << ACK_SHIFT) - 1) + 1
        return beats + (acted_upon << ACK_SHIFT) + (pack_progress(progress) << PROGRESS_SHIFT)

    def take_reply(self, sent: int, found: int, sent_at: float) -> None:
        """Take in what the store holds after the beat `sent`. Any other value means that the coordinator has taken the
        counter away: this incarnation is over."""
        if found != sent:
            self.is_fenced = True
        else:
            self.counter, self.alive_until = sent, sent_at + self.lease_s

    def is_trusted(self, now: float) -> bool:
        """Whether this node may assume that it still holds its place."""
        return not self.is_fenced and now < self.alive_until
