"""What replica groups reported of their steps, and what the loss of one group has cost the others. Pure functions.

A step counts when a group has committed it: torchft's `should_commit` said yes, or a plain training has applied it.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.measure import require

PAUSE_FACTOR = 2.0
"""An interval of more than so many usual ones is a pause."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a group has committed."""

    group: int
    no: int
    groups: int
    """How many groups took part in it."""
    digest: str
    """Of the weights after it."""
    at: float
    pid: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a loss has cost the groups that did not fail."""

    gap_s: float
    """The longest time between two steps that one of them committed."""
    steps_lost: float
    """By the one that lost the most: steps done again, and steps that it would have made in its pauses."""
    back_s: float | None
    """From the loss until the group that was lost has committed a step. None if that was not waited for."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Who was lost, and what may happen to the others."""

    group: int
    at: float
    are_others_kept: bool
    """The other groups keep their processes."""
    saved_every: int | None = None
    """Steps from one checkpoint to the next, where all start again from the last one."""


def parse(lines: Iterable[str]) -> list[Step]:
    """Steps in the order they were written. A line that is still being written is left out."""
    found: list[Step] = []
    for line in lines:
        what, _, rest = line.partition(" ")
        fields = dict(item.partition("=")[::2] for item in rest.split())
        if what == "step" and line.endswith("\n"):
            group, no, groups, pid = (int(fields[name]) for name in ("group", "step", "groups", "pid"))
            found.append(Step(group, no, groups, fields["digest"], float(fields["time"]), pid))
    return found


def by_group(steps: Iterable[Step]) -> dict[int, list[Step]]:
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(step.group, []).append(step)
    return found


def count_together(steps: Iterable[Step], groups: int, since: float = 0.0, but: Collection[int] = ()) -> int:
    """Steps that the slowest of so many groups has made together with the others since then; 0 if some made none."""
    made = [step for step in steps if step.at > since and step.groups == groups and step.group not in but]
    counts = [len(own) for own in by_group(made).values()]
    return min(counts) if len(counts) == groups else 0


def judge(steps: Sequence[Step], loss: Loss) -> Cost:
    """What the loss has cost, if all groups did what they should."""
    groups = by_group(steps)
    _check(steps, groups, loss)
    others = {group: own for group, own in groups.items() if group != loss.group}
    back = [step.at - loss.at for step in groups[loss.group] if step.at > loss.at]
    return Cost(
        gap_s=max(_gap_s(own, loss.at) for own in others.values()),
        steps_lost=max(_steps_lost(own, loss.at) for own in others.values()),
        back_s=min(back, default=None),
    )


def _gap_s(steps: Sequence[Step], since: float) -> float:
    return max(later.at - earlier.at for earlier, later in pairwise(steps) if later.at > since)


def _steps_lost(steps: Sequence[Step], since: float) -> float:
    """Against the pace before the loss: the median interval."""
    pace_s = statistics.median(later.at - earlier.at for earlier, later in pairwise(steps) if later.at <= since)
    intervals = [later.at - earlier.at for earlier, later in pairwise(steps) if later.at > since]
    paused = sum(interval / pace_s - 1 for interval in intervals if interval > PAUSE_FACTOR * pace_s)
    best, again = 0, 0
    for step in steps:
        again += step.no <= best
        best = max(best, step.no)
    return paused + again


def _check(steps: Sequence[Step], groups: Mapping[int, Sequence[Step]], loss: Loss) -> None:
    """Refuse a training that was none, or in which something else happened than what is measured."""
    require(loss.group in groups and len(groups) > 1, "the group to be lost, or all others, never trained")
    lost_pids = {step.pid for step in groups[loss.group] if step.at <= loss.at}
    alive = {step.pid for step in steps if step.at > loss.at}
    require(bool(lost_pids) and not lost_pids & alive, "the group that was lost trained on")
    digests: dict[int, set[str]] = {}
    for step in steps:
        digests.setdefault(step.no, set()).add(step.digest)
    require(all(len(found) == 1 for found in digests.values()), "groups have different weights after the same step")
    for group, own in groups.items():
        if group == loss.group:
            continue
        after = [step for step in own if step.at > loss.at]
        require(len(own) - len(after) > 1, f"group {group} did not train before the loss")
        require(bool(after), f"group {group} did not train after the loss")
        is_alone = all(step.groups == 1 for step in after)
        require(not is_alone or len(groups) == 2, f"group {group} trained on without the others")
        if loss.are_others_kept:
            require(len({step.pid for step in own}) == 1, f"group {group} was restarted, too")
        if loss.saved_every is not None:
            last, first = own[-len(after) - 1].no, after[0].no
            require(first > last - loss.saved_every, f"group {group} began again without its last checkpoint")
