"""Settings without effect are reported, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.load import load_settings
from ft_rendezvous.config.settings import RunSettings


def run_of(nnodes: tuple[int, int], conf: dict[str, Any]) -> RunSettings:
    least, most = nnodes
    return load_settings(endpoint="h:1", run_id="r", min_nodes=least, max_nodes=most, conf=conf, env={}).run


@pytest.mark.parametrize(
    ("nnodes", "conf", "expected"),
    [
        ((2, 4), {"grow": "next"}, "grow=next has no effect with policy=fixed: set policy=elastic"),
        ((4, 4), {"policy": "elastic"}, "policy=elastic has no effect with --nnodes=4:4: give it a MAX above MIN"),
        (
            (4, 10),
            {"policy": "elastic", "segment": 4},
            "at most 8 of MAX=10 nodes can train: they come in blocks of 4: make MAX 12, or expect 2 to wait",
        ),
        ((2, 4), {"unit_from": "env:RACK"}, "unit_from=env:RACK has no effect with unit_size=1: set unit_size"),
        (
            (2, 4),
            {"max_node_failures": 0, "max_node_losses": 0, "quarantine_s": 9},
            "quarantine_s=9 has no effect with max_node_failures=0 and max_node_losses=0",
        ),
        ((2, 4), {"crash_loop": 0, "crash_loop_s": 9}, "crash_loop_s=9 has no effect with crash_loop=0"),
    ],
)
def test_a_setting_without_effect_is_reported(nnodes: tuple[int, int], conf: dict[str, Any], expected: str) -> None:
    (remark,) = remark_on(run_of(nnodes, conf))
    assert str(remark).startswith(expected)


@pytest.mark.parametrize(
    ("nnodes", "conf"),
    [
        ((2, 4), {}),
        ((4, 4), {}),
        ((4, 10), {"segment": 4}),
        ((4, 8), {"policy": "elastic", "segment": 4, "grow": "checkpoint"}),
        ((4, 8), {"unit_size": 2, "unit_from": "env:RACK"}),
        ((2, 4), {"max_node_failures": 0}),
        ((2, 4), {"quarantine_s": 9, "crash_loop_s": 9}),
        ((2, 4), {"max_node_failures": 0, "quarantine_s": 9}),
        ((2, 4), {"max_node_losses": 0, "quarantine_s": 9}),
    ],
)
def test_what_has_an_effect_is_not_remarked_on(nnodes: tuple[int, int], conf: dict[str, Any]) -> None:
    assert list(remark_on(run_of(nnodes, conf))) == []
