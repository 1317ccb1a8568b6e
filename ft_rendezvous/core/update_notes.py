"""Updates that workers report, as records carry them and as the journal tells them. Pure data.

A record is an array and is decoded strictly. An entry of the journal is read by other programs, and has names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from ft_rendezvous.text import MAX_REASON_CHARS, count, duration

MOST_UPDATE_STEPS, MOST_FAILED_NAMES = 16, 8
UpdateName = Annotated[str, msgspec.Meta(max_length=64)]
UpdateCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
UpdateSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
MAX_SUM_S, MAX_SUM = 1e15, 1 << 53
SummedSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_SUM_S)]
"""Bounded, because sums of them must be finite: a log may be damaged, and any program can write a record."""


class UpdateOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"


class StepTime(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How long one step of an update took."""

    name: UpdateName
    duration_s: UpdateSeconds


class UpdateNote(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One update: several parties changed together, or were to."""

    version: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    outcome: UpdateOutcome
    attempts: UpdateCount
    parties: UpdateCount
    """How many took part in the first attempt."""
    updated: UpdateCount
    """How many have the version now."""
    failed_count: UpdateCount
    failed: Annotated[tuple[UpdateName, ...], msgspec.Meta(max_length=MOST_FAILED_NAMES)]
    """The names of the first parties that failed."""
    steps: Annotated[tuple[StepTime, ...], msgspec.Meta(max_length=MOST_UPDATE_STEPS)]
    duration_s: UpdateSeconds
    lost_s: UpdateSeconds
    """Time of attempts that failed, with their clean-up."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)]

    @property
    def is_plain(self) -> bool:
        """Whether it was completed at the first attempt."""
        return self.outcome is UpdateOutcome.COMPLETED and self.attempts <= 1


class UpdateSums(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Updates that are only counted."""

    updates: UpdateCount = 0
    failed: UpdateCount = 0
    retried: UpdateCount = 0
    spent_s: SummedSeconds = 0.0
    lost_s: SummedSeconds = 0.0

    def plus(self, note: UpdateNote) -> UpdateSums:
        """The sums with one more update."""
        return UpdateSums(
            min(self.updates + 1, MAX_SUM),
            min(self.failed + (note.outcome is UpdateOutcome.FAILED), MAX_SUM),
            min(self.retried + (note.attempts > 1), MAX_SUM),
            min(self.spent_s + note.duration_s, MAX_SUM_S),
            min(self.lost_s + note.lost_s, MAX_SUM_S),
        )


class ReportedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One update that workers have reported."""

    version: int
    outcome: UpdateOutcome
    attempts: UpdateCount
    parties: UpdateCount
    """How many took part in the first attempt."""
    updated: UpdateCount
    """How many have the version now."""
    failed_count: UpdateCount
    failed: tuple[str, ...]
    """The names of the first parties that failed."""
    steps: tuple[StepTime, ...]
    """Each step with its seconds."""
    duration_s: UpdateSeconds
    lost_s: UpdateSeconds
    """Time of attempts that failed, with their clean-up."""
    reason: str

    @property
    def is_plain(self) -> bool:
        """Whether it was completed at the first attempt."""
        return self.outcome is UpdateOutcome.COMPLETED and self.attempts <= 1

    @property
    def failed_names(self) -> str:
        """The parties that failed: the first few by name."""
        rest = self.failed_count - len(self.failed)
        return ", ".join(self.failed) + (f" and {rest:,} more" if rest > 0 else "")

    def __str__(self) -> str:
        """For people, in one sentence."""
        parties = f"{self.updated:,} of {self.parties:,} {'party' if self.parties == 1 else 'parties'}"
        tries = f" in {count(self.attempts, 'attempt')}" if self.attempts > 1 else ""
        lost = f", {duration(self.lost_s)} lost" if self.lost_s else ""
        failed = f"; failed: {self.failed_names}" if self.failed_count else ""
        reason = f": {self.reason}" if self.reason else ""
        took = f"after {duration(self.duration_s)}{tries}{lost}"
        has = "has" if self.updated == 1 else "have"
        return f"version {self.version} {self.outcome} {took}, {parties} {has} it{failed}{reason}"
