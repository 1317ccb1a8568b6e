"""The settings of replica groups: what a user may write, the error for everything else, and what follows from them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.load import load_settings
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.errors import ConfigError


def run_of(nnodes: tuple[int, int], **conf: Any) -> RunSettings:
    least, most = nnodes
    return load_settings(endpoint="h:1", run_id="r", min_nodes=least, max_nodes=most, conf=conf, env={}).run


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nnodes", "conf", "told"),
    [
        pytest.param(
            (5, 8),
            {"group_size": 2},
            "group_size=2 does not divide both numbers of --nnodes=5:8: make it --nnodes=6:8, for example",
            id="MIN",
        ),
        pytest.param(
            (6, 9),
            {"group_size": 2},
            "group_size=2 does not divide both numbers of --nnodes=6:9: make it --nnodes=6:10, for example",
            id="MAX",
        ),
        pytest.param(
            (1, 3),
            {"group_size": 4},
            "group_size=4 does not divide both numbers of --nnodes=1:3: make it --nnodes=4:4, for example",
            id="fewer nodes than one group",
        ),
        pytest.param(
            (6, 8),
            {"group_size": 2, "unit_size": 2},
            "unit_size=2 and group_size=2 exclude each other: leave one out",
            id="units",
        ),
        pytest.param(
            (12, 12),
            {"group_size": 4, "segment": 3},
            "segment=3 neither divides group_size=4 nor is a multiple of it: a segment is a part of a group, or holds "
            "whole groups",
            id="a segment that is neither a part nor several",
        ),
        pytest.param(
            (8, 8),
            {"group_size": 4, "segment": 6},
            "segment=6 neither divides group_size=4 nor is a multiple of it: a segment is a part of a group, or holds "
            "whole groups",
            id="no number of nodes would help",
        ),
        pytest.param(
            (6, 8),
            {"group_size": 2, "min_groups": 0},
            "min_groups=0 is not between 1 and 3, the groups of --nnodes=6:8 with group_size=2",
            id="no group at all",
        ),
        pytest.param(
            (6, 8),
            {"group_size": 2, "min_groups": 4},
            "min_groups=4 is not between 1 and 3, the groups of --nnodes=6:8 with group_size=2",
            id="more groups than MIN has",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused_with_what_to_do(
    nnodes: tuple[int, int], conf: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(nnodes, **conf)
    assert str(caught.value) == told


@given(least=st.integers(1, 40), more=st.integers(0, 9), size=st.integers(1, 6), segment=st.integers(1, 12))
def test_the_number_of_nodes_that_is_proposed_works(least: int, more: int, size: int, segment: int) -> None:
    conf = {"group_size": size, "segment": segment}
    told = error_of((least, least + more), conf)
    proposed = re.search(r"make it --nnodes=(\d+):(\d+)", told)
    can_be = not (size % segment and segment % size)
    assert (proposed is not None) == (told != "" and can_be), told
    if proposed is not None:
        run = run_of((int(proposed[1]), int(proposed[2])), **conf)
        assert run.min_nodes - least < max(size, segment), "not more nodes than are needed"


def error_of(nnodes: tuple[int, int], conf: dict[str, Any]) -> str:
    """Why settings are refused; empty if they are not."""
    try:
        run_of(nnodes, **conf)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("segment", [1, 2, 4, 8, 16])
def test_a_segment_is_a_part_of_a_group_or_holds_whole_groups(segment: int) -> None:
    rules = run_of((16, 16), group_size=4, segment=segment).placement_rules
    assert rules.step == max(4, segment)


# --- what follows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nnodes", "conf", "wanted"),
    [
        pytest.param((6, 8), {}, 1, id="one group"),
        pytest.param((6, 8), {"policy": "elastic"}, 1, id="one elastic group"),
        pytest.param((6, 8), {"group_size": 2}, 3, id="MIN nodes"),
        pytest.param((6, 8), {"group_size": 2, "policy": "elastic"}, 4, id="MAX nodes"),
        pytest.param((6, 6), {"group_size": 6}, 1, id="all in one"),
        pytest.param((6, 8), {"group_size": 1}, 6, id="each node for itself"),
    ],
)
def test_wanted_groups(nnodes: tuple[int, int], conf: dict[str, Any], wanted: int) -> None:
    assert run_of(nnodes, **conf).wanted_groups == wanted


def sizes(rules: PlacementRules, most: int) -> list[int]:
    """The world for each number of nodes that fit."""
    return [rules.world_size(capacity) for capacity in range(most + 1)]


@pytest.mark.parametrize(
    ("nnodes", "conf", "first", "later"),
    [
        pytest.param(
            (4, 6), {"group_size": 2}, [0, 0, 0, 0, 4, 4, 4], [0, 0, 2, 2, 4, 4, 4], id="a group is enough later"
        ),
        pytest.param(
            (4, 6),
            {"group_size": 2, "policy": "elastic"},
            [0, 0, 0, 0, 4, 4, 6],
            [0, 0, 2, 2, 4, 4, 6],
            id="elastic: up to MAX",
        ),
        pytest.param(
            (4, 6),
            {"group_size": 2, "min_groups": 2},
            [0, 0, 0, 0, 4, 4, 4],
            [0, 0, 0, 0, 4, 4, 4],
            id="no fewer than min_groups",
        ),
        pytest.param(
            (4, 6),
            {"group_size": 1, "segment": 2},
            [0, 0, 0, 0, 4, 4, 4],
            [0, 0, 2, 2, 4, 4, 4],
            id="whole segments, though one group would be less",
        ),
        pytest.param((4, 6), {}, [0, 0, 0, 0, 4, 4, 4], [0, 0, 0, 0, 4, 4, 4], id="without groups they are the same"),
    ],
)
def test_how_large_worlds_may_be(
    nnodes: tuple[int, int], conf: dict[str, Any], first: list[int], later: list[int]
) -> None:
    run = run_of(nnodes, **conf)
    assert sizes(run.placement_rules, 6) == first
    assert sizes(run.later_placement_rules, 6) == later


def test_later_rules_change_how_many_nodes_train_and_nothing_else() -> None:
    run = run_of((8, 8), group_size=2, segment=2, ranks="topology", spread="domains")
    first, later = run.placement_rules, run.later_placement_rules
    assert (later.segment, later.group_size, later.ranks, later.spread) == (2, 2, first.ranks, first.spread)
    assert (later.policy, later.max_nodes) == (Policy.ELASTIC, first.max_nodes)


def test_blame_knows_how_often_a_group_may_fail() -> None:
    assert run_of((4, 4), group_size=2).blame_rules.max_group_failures == 3
    assert run_of((4, 4), group_size=2, max_group_failures=0).blame_rules.max_group_failures == 0


# --- remarks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"min_groups": 2}, "min_groups=2 has no effect without group_size: set group_size, or leave it out"),
        ({"lighthouse": "yes"}, "lighthouse has no effect without group_size: set group_size, or leave it out"),
        (
            {"max_group_failures": 5},
            "max_group_failures=5 has no effect without group_size: set group_size, or leave it out",
        ),
        (
            {"group_size": 2, "grow": "next"},
            "grow=next has no effect with group_size: leave it out: a new group restarts no other",
        ),
        (
            {"group_size": 2, "grow": "checkpoint", "policy": "elastic"},
            "grow=checkpoint has no effect with group_size: leave it out: a new group restarts no other",
        ),
        (
            {"group_size": 2, "crash_loop": 0, "max_group_failures": 0, "crash_loop_s": 9},
            "crash_loop_s=9 has no effect with crash_loop=0 and max_group_failures=0: leave one of them out",
        ),
    ],
)
def test_a_setting_without_effect_is_reported_once(conf: dict[str, Any], expected: str) -> None:
    assert list(map(str, remark_on(run_of((4, 8), **conf)))) == [expected]


def test_every_setting_without_effect_is_reported() -> None:
    remarks = list(map(str, remark_on(run_of((4, 8), lighthouse="yes", min_groups=2))))
    assert [remark.split()[0] for remark in remarks] == ["lighthouse", "min_groups=2"]


@pytest.mark.parametrize(
    "conf",
    [
        {"group_size": 2},
        {"group_size": 2, "min_groups": 2, "lighthouse": "yes", "max_group_failures": 1},
        {"group_size": 2, "policy": "elastic"},
        {"group_size": 2, "crash_loop": 0, "crash_loop_s": 9},
    ],
)
def test_what_has_an_effect_is_not_remarked_on(conf: dict[str, Any]) -> None:
    assert list(remark_on(run_of((4, 8), **conf))) == []
