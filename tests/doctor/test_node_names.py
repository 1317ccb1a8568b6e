"""Lists of nodes as SLURM writes and reads them, and other small words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.doctor.node_names import describe_nodes, expand_names, fold_names
from ft_rendezvous.text import count, duration, listing


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n1,m2", ["n1", "m2"]),
        ("n[1-3,7],m1", ["n1", "n2", "n3", "n7", "m1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-3]-ib", ["n1-ib", "n2-ib", "n3-ib"]),
        ("n[x-y]", ["nx-y"]),
    ],
)
def test_slurms_list_of_nodes(text: str, names: list[str]) -> None:
    assert expand_names(text) == names


def test_a_list_of_nodes_may_not_exhaust_the_memory() -> None:
    assert len(expand_names("n[0-999999999][0-999999999]")) == 100_000


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n3", "n2", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-09],n10"),
        (["a", "n1-ib", "n2-ib"], "n[1-2]-ib,a"),
        (["2", "3", "4"], "[2-4]"),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


@given(st.sets(st.from_regex(r"[a-z]{1,2}(0[0-9]{2}|[1-9][0-9]{0,2})", fullmatch=True)))
def test_what_is_folded_unfolds_to_the_same(names: set[str]) -> None:
    assert set(expand_names(fold_names(names))) == names


def test_nodes_are_reported_shortly_however_many_there_are() -> None:
    crowd = [f"n{number}" for number in range(1000)]
    assert describe_nodes(crowd, 1000) == "all 1,000 nodes"
    assert describe_nodes(crowd[:500], 1000) == "n[0-499]"
    assert describe_nodes(crowd[::2], 1000) == "500 nodes, first n0"
    assert describe_nodes(crowd[:1], 1) == "n0"
    assert describe_nodes([], 3) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00035, "0.35 ms"), (0.0042, "4.2 ms"), (0.0999, "100 ms"), (1.0, "1.0 s"), (72, "1 min 12 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_and_listings() -> None:
    assert (count(1, "node"), count(2000, "node")) == ("1 node", "2,000 nodes")
    assert listing(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"
    assert listing(["a"]) == "a"
