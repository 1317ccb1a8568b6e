"""Progress: which workers of a node are late. The agent judges by changes that it sees, in time that it ran itself.

Pure. A look brings what each worker has said so far, and how long ago the last look was. A look that comes late counts
for two intervals at most: then the agent stood still, and its workers most likely did, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ft_rendezvous.core.leases import WorkersProgress

LOOK_INTERVAL_S = 0.25
"""How often an agent looks at the progress of its workers."""
ALIKE_S = 1.0
"""Ranks that wait for about as long as the rank that waits for longest: steps say more about them than ages do."""
MOST_LOOKS = 2
"""How many intervals one look may count for."""
AUTO_MULTIPLE = 10.0
"""With `auto`, a rank is late after this many times the slowest recent step."""
AUTO_LEAST_S = 30.0
AUTO_UNLEARNED_S = 600.0
"""The timeout of `auto` until it has seen `AUTO_LEARNED_STEPS` steps."""
AUTO_LEARNED_STEPS = 3
BUCKET_STEPS = 64
BUCKETS = 64
"""Recent steps are those of the last so many buckets: about 4,000."""


class ProgressFrom(StrEnum):
    """What counts as progress of a worker."""

    CALLS = "calls"
    """Its calls of `progress`, or those of its optimizer."""
    LOG = "log"
    """These calls, and its output."""
    OPTIMIZER = "optimizer"
    """The steps of its optimizers, without a call, if it starts warm."""


@dataclass(frozen=True, slots=True)
class HangRules:
    """When a rank is late. None: never."""

    hang_s: float | None = None
    """After its first progress."""
    is_auto: bool = False
    """The time after the first progress is learned."""
    startup_s: float | None = None
    """Before any worker of the node has made progress."""

    @property
    def is_on(self) -> bool:
        return self.is_auto or self.hang_s is not None or self.startup_s is not None


@dataclass(frozen=True, slots=True)
class WorkerReading:
    """What one worker has said by now."""

    token: tuple[int, ...] | None = None
    """Changes whenever the worker makes progress. None: it never has."""
    step: int | None = None
    pause: str = ""
    """Why no progress is expected of it. Empty: progress is expected."""
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that should have made progress."""

    rank: int
    step: int | None
    late_s: float
    """For how long it has made none."""
    timeout_s: float
    is_starting: bool
    """No worker of its node has made any progress yet."""


@dataclass(slots=True)
class StepTimes:
    """The slowest of the recent steps of a run, as one node has seen them."""

    count: int = 0
    _slowest: deque[float] = field(default_factory=lambda: deque(maxlen=BUCKETS))
    """The slowest step of each bucket."""

    def note(self, step_s: float) -> None:
        if self.count % BUCKET_STEPS == 0:
            self._slowest.append(step_s)
        self._slowest[-1] = max(self._slowest[-1], step_s)
        self.count += 1

    @property
    def slowest_s(self) -> float:
        return max(self._slowest, default=0.0)

    @property
    def timeout_s(self) -> float:
        """The timeout that `auto` stands for now."""
        if self.count < AUTO_LEARNED_STEPS:
            return AUTO_UNLEARNED_S
        return max(AUTO_LEAST_S, AUTO_MULTIPLE * self.slowest_s)


@dataclass(slots=True)
class _Watched:
    token: tuple[int, ...] | None = None
    idle_s: float = 0.0
    """Counted time since its last progress, or since it was last reported."""
    step_s: float = 0.0
    """Counted time since its last progress."""


@dataclass(slots=True)
class LateTable:
    """The workers of one node, in one place after another. What it learned of steps outlives a place."""

    rules: HangRules
    times: StepTimes = field(default_factory=StepTimes)
    _ranks: dict[int, _Watched] = field(default_factory=dict)
    _is_paused: bool = False

    def begin(self) -> None:
        """Workers start in a new place."""
        self._ranks.clear()

    @property
    def timeout_s(self) -> float | None:
        """The time after which a rank that has made progress is late."""
        return self.times.timeout_s if self.rules.is_auto else self.rules.hang_s

    def find_slowest(self, readings: Mapping[int, WorkerReading]) -> WorkersProgress | None:
        """The rank that waits for longest; of several that wait for about as long, the one with the lowest step.

        A rank that has never made progress is not judged, and not shown. None: there is no other. Call `look` with the
        same readings first.
        """
        ages = {rank: each.step_s for rank, each in self._ranks.items() if each.token is not None}
        if not ages:
            return None
        longest_s = max(ages.values())
        alike = [rank for rank, age_s in ages.items() if age_s >= longest_s - ALIKE_S]
        steps = {rank: step for rank in alike if (step := readings[rank].step) is not None}
        slowest = min(alike, key=lambda rank: (steps.get(rank, float("inf")), -ages[rank], rank))
        late_after_s = None if self.timeout_s is None else round(self.timeout_s)
        return WorkersProgress(steps.get(slowest), int(ages[slowest]), slowest, late_after_s)

    def find_moving(self) -> list[int]:
        """Ranks that have made progress within half of the time after which they are late."""
        timeout_s = self.timeout_s or self.rules.startup_s
        if timeout_s is None or self._is_paused:
            return []
        return [rank for rank, each in self._ranks.items() if each.token is not None and each.step_s < timeout_s / 2]

    def look(self, readings: Mapping[int, WorkerReading], elapsed_s: float) -> list[LateRank]:
        """Take in what the workers have said, by rank. Returns the ranks that are late, each once per timeout.

        Time does not count for a node on which a worker has announced a pause: its other workers may wait for that
        one. When the pause is over, all of them begin anew.
        """
        counted_s = min(max(0.0, elapsed_s), MOST_LOOKS * LOOK_INTERVAL_S)
        live = {rank: reading for rank, reading in readings.items() if not reading.has_ended}
        self._ranks = {rank: self._ranks.get(rank, _Watched()) for rank in live}
        for rank, reading in live.items():
            self._take(self._ranks[rank], reading, counted_s)
        self._is_paused = any(reading.pause for reading in live.values())
        if self._is_paused:
            for watched in self._ranks.values():
                watched.idle_s = watched.step_s = 0.0
            return []
        is_starting = all(reading.token is None for reading in readings.values())
        return [late for rank, reading in live.items() if (late := self._judge(rank, reading, is_starting)) is not None]

    def _take(self, watched: _Watched, reading: WorkerReading, counted_s: float) -> None:
        watched.idle_s += counted_s
        watched.step_s += counted_s
        if reading.token == watched.token:
            return
        # The first progress says nothing about a step. Nor does a time of 0, after a pause.
        if watched.token is not None and watched.step_s > 0:
            self.times.note(watched.step_s)
        watched.token, watched.idle_s, watched.step_s = reading.token, 0.0, 0.0

    def _judge(self, rank: int, reading: WorkerReading, is_starting: bool) -> LateRank | None:
        watched = self._ranks[rank]
        hang_s = None if reading.token is None else self.timeout_s
        timeout_s = self.rules.startup_s if is_starting else hang_s
        if timeout_s is None or watched.idle_s < timeout_s:
            return None
        watched.idle_s = 0.0  # It is reported again after another timeout.
        return LateRank(rank, reading.step, watched.step_s, timeout_s, is_starting)
