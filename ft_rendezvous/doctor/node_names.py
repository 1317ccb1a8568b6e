"""Lists of node names, short enough that a thousand nodes fit on a line. Pure functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from ft_rendezvous.text import count

MAX_SHOWN_CHARS = 60
"""Of a list of nodes."""


def fold_names(names: Iterable[str]) -> str:
    """Names as SLURM writes them: `n[1-3,7]`."""
    series: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    plain: list[str] = []
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})([^0-9]*)", name)
        if match is None:
            plain.append(name)
        else:
            head, digits, tail = match.groups()
            series[head, len(digits) if digits.startswith("0") and len(digits) > 1 else 0, tail].add(int(digits))
    folded = [f"{head}{_fold_numbers(sorted(numbers), width)}{tail}" for (head, width, tail), numbers in series.items()]
    return ",".join([*folded, *plain])


def _fold_numbers(numbers: Sequence[int], width: int) -> str:
    runs = []
    for _, pairs in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in pairs]
        first, last = (f"{number:0{width}d}" for number in (run[0], run[-1]))
        runs.append(first if first == last else f"{first}-{last}")
    return runs[0] if len(numbers) == 1 else f"[{','.join(runs)}]"


def describe_nodes(names: Sequence[str], total: int) -> str:
    """All nodes, a name, a range of names, or only their number."""
    if not names:
        return ""
    if len(names) == total and total > 1:
        return f"all {total:,} nodes"
    folded = fold_names(names)
    return folded if len(folded) <= MAX_SHOWN_CHARS else f"{count(len(names), 'node')}, first {names[0]}"


def expand_names(text: str, most: int = 100_000) -> list[str]:
    """The single names of SLURM's `n[1-3,07],m1`, at most `most`."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        made = [""]
        for place, piece in enumerate(re.split(r"\[([^\]]*)\]", part)):
            options = _numbers_in(piece) if place % 2 else [piece]
            made = list(islice((head + tail for head in made for tail in options), most))
        names += made[: most - len(names)]
    return names


def _numbers_in(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            numbers += [
                f"{number:0{len(first)}d}" for number in range(int(first), min(int(last), int(first) + 99_999) + 1)
            ]
        else:
            numbers.append(piece)
    return numbers
