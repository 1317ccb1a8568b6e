"""Stacks of workers: which ranks are at the same place, and which are not.

Pure. Two stacks are the same if they pass through the same functions, and through the same lines of the training
script. Lines of libraries do not count: a rank that waits in a library's loop is now at one line of it, now at another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ft_rendezvous.text import count, listing, one_line

MAX_FRAMES = 12
"""Frames of a stack that a record holds: the innermost ones."""
MAX_NAME_CHARS = 60
"""Of a function or a file in a record."""
MAX_GROUPS = 6
"""Different stacks of one node that a record holds."""
MAX_STACKS_BYTES = 3000
"""What the stacks of one node may take in a record."""
WRAPPERS = frozenset(
    {"wrapper", "_fn", "inner", "__call__", "_call_impl", "_wrapped_call_impl", "decorate_context", "<lambda>"}
)
"""Functions that only pass a call on. They say little about where a rank is."""


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One call. `is_library`: its file is not a part of the training script."""

    function: str
    file: str
    line: int
    is_library: bool

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.file else self.function


Stack = tuple[Frame, ...]
"""From the innermost call outwards. Empty: it could not be taken."""


class RankStack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Ranks that have the same stack, each with its step."""

    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    stack: Stack

    def __post_init__(self) -> None:
        if len(self.ranks) != len(self.steps):
            raise ValueError(f"{len(self.ranks)} ranks and {len(self.steps)} steps")


def normalise(stack: Stack) -> tuple[object, ...]:
    """What two stacks must share to be the same."""
    return tuple((f.function, f.file, 0 if f.is_library else f.line) for f in stack)


def group_stacks(stacks: Iterable[RankStack]) -> list[RankStack]:
    """The ranks by stack, the largest group first. Ranks without a stack are last."""
    found: dict[tuple[object, ...], list[RankStack]] = {}
    for each in stacks:
        found.setdefault(normalise(each.stack), []).append(each)
    return sorted(map(_merge, found.values()), key=lambda group: (not group.stack, -len(group.ranks), group.ranks))


def _merge(alike: Sequence[RankStack]) -> RankStack:
    pairs = sorted({rank: step for each in alike for rank, step in zip(each.ranks, each.steps, strict=True)}.items())
    first = min(alike, key=lambda each: each.ranks)
    return RankStack(tuple(rank for rank, _ in pairs), tuple(step for _, step in pairs), first.stack)


def describe_place(stack: Stack) -> str:
    """Where a rank is, in a few words: the library function that the script has called, or the script's own."""
    if not stack:
        return "has no stack"
    own = next((index for index, frame in enumerate(stack) if not frame.is_library), None)
    if own == 0:
        return f"is in {stack[0]}"
    if own is None:
        return f"is in {next((frame for frame in stack if frame.function not in WRAPPERS), stack[0])}"
    calls, caller = stack[:own], stack[own]
    named = next((frame for frame in reversed(calls) if frame.function not in WRAPPERS), calls[0])
    return f"is in {named.function}, called at {caller.file}:{caller.line}"


def cut(stacks: Iterable[RankStack], depth: int) -> list[RankStack]:
    """The stacks with so many of their innermost frames."""
    return [RankStack(each.ranks, each.steps, each.stack[:depth]) for each in stacks]


def trim(stacks: Sequence[RankStack], most_bytes: int = MAX_STACKS_BYTES) -> tuple[tuple[RankStack, ...], int]:
    """The stacks of one node, grouped and cut so that they fit into a record; and the depth at which they are cut."""
    stacks = [RankStack(each.ranks, each.steps, tuple(map(_shorten, each.stack))) for each in stacks]
    groups = group_stacks(stacks)
    groups, others = groups[:MAX_GROUPS], groups[MAX_GROUPS:]
    if others:
        groups.append(_merge([RankStack(group.ranks, group.steps, ()) for group in others]))
    for depth in range(MAX_FRAMES, -1, -1):
        fitting = tuple(cut(groups, depth))
        if len(msgspec.json.encode(fitting)) <= most_bytes:
            return fitting, depth
    return (), 0


def _shorten(frame: Frame) -> Frame:
    return Frame(
        one_line(frame.function)[:MAX_NAME_CHARS], one_line(frame.file)[-MAX_NAME_CHARS:], frame.line, frame.is_library
    )


# --- judging ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OddOnesOut:
    """Where the ranks of a world are that does not go on."""

    groups: tuple[RankStack, ...]
    """The largest first."""
    odd: tuple[RankStack, ...] = ()
    """The ranks that are elsewhere than the majority. Empty: there is no majority, or no odd rank."""
    silent_count: int = 0
    """Ranks of nodes that have not answered."""

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for group in self.odd for rank in group.ranks))

    def __str__(self) -> str:
        if self.odd:
            majority = self.groups[0]
            parts = [_place(majority), *(_place(group, names_ranks=True) for group in self.odd)]
        else:
            parts = [_place(group, names_ranks=True) for group in self.groups]
        shown = [*parts[:4], *([f"{count(len(parts) - 4, 'other stack')}"] if len(parts) > 4 else [])]
        silent = [f"{count(self.silent_count, 'rank')} did not answer"] if self.silent_count else []
        return ", ".join([*shown, *silent]) or "no rank has a stack"


def _place(group: RankStack, names_ranks: bool = False) -> str:
    many, place = len(group.ranks), describe_place(group.stack)
    if many > 1:
        place = place.replace("is in", "wait in" if not names_ranks else "are in", 1).replace("has no", "have no", 1)
    who = f"rank{'' if many == 1 else 's'} {listing(group.ranks)}" if names_ranks or many == 1 else f"{many:,} ranks"
    return f"{who} {place}"


def judge_stacks(stacks: Iterable[RankStack], world_size: int) -> OddOnesOut:
    """Group the ranks of a world, and name the odd ones out.

    There is a majority if more than half of *all* ranks of the world have the same stack, also those that did not
    answer. A rank without a stack is neither odd nor a part of a majority.
    """
    groups = tuple(group_stacks(stacks))
    silent_count = max(0, world_size - sum(len(group.ranks) for group in groups))
    has_majority = bool(groups) and bool(groups[0].stack) and 2 * len(groups[0].ranks) > world_size
    odd = tuple(group for group in groups[1:] if group.stack) if has_majority else ()
    return OddOnesOut(groups, odd, silent_count)
