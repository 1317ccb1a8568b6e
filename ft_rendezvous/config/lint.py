"""Finds settings that have no effect, so that no user relies on them. None of them is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.next_cycle import Grow


class Remark(NamedTuple):
    fact: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fact}: {self.remedy}"


def remark_on(run: RunSettings) -> Iterator[Remark]:
    """The settings without effect, each with what the user can do."""
    if run.policy is Policy.FIXED and run.grow is not Grow.NOW and not run.group_size:
        yield Remark(f"grow={run.grow} has no effect with policy=fixed", "set policy=elastic, or leave grow out")
    if run.policy is Policy.ELASTIC and run.min_nodes == run.max_nodes:
        yield Remark(
            f"policy=elastic has no effect with --nnodes={run.min_nodes}:{run.max_nodes}",
            "give it a MAX above MIN, or leave policy out",
        )
    block, unused = run.placement_rules.block, run.max_nodes % run.placement_rules.block
    if run.policy is Policy.ELASTIC and unused:
        yield Remark(
            f"at most {run.max_nodes - unused} of MAX={run.max_nodes} nodes can train: they come in blocks of {block}",
            f"make MAX {run.max_nodes - unused + block}, or expect {unused} to wait as spares",
        )
    if run.unit_size == 1 and run.unit_from is not None:
        yield Remark(f"unit_from={run.unit_from} has no effect with unit_size=1", "set unit_size, or leave it out")
    if run.max_node_failures == run.max_node_losses == 0 and run.quarantine_s != RunSettings.quarantine_s:
        yield Remark(
            f"quarantine_s={run.quarantine_s:g} has no effect with max_node_failures=0 and max_node_losses=0",
            "leave it out, or one of the others",
        )
    if run.crash_loop == 0 and run.crash_loop_s != RunSettings.crash_loop_s:
        limits = "crash_loop=0" + (" and max_group_failures=0" if run.group_size else "")
        if not (run.group_size and run.max_group_failures):
            yield Remark(f"crash_loop_s={run.crash_loop_s:g} has no effect with {limits}", "leave one of them out")
    yield from _remark_on_groups(run)


def _remark_on_groups(run: RunSettings) -> Iterator[Remark]:
    if run.group_size and run.grow is not Grow.NOW:
        yield Remark(f"grow={run.grow} has no effect with group_size", "leave it out: a new group restarts no other")
    if run.group_size:
        return
    unused = ["lighthouse"] if run.has_lighthouse else []
    unused += [
        f"{key}={getattr(run, key)}"
        for key in ("min_groups", "max_group_failures")
        if getattr(run, key) != getattr(RunSettings, key)
    ]
    for setting in unused:
        yield Remark(f"{setting} has no effect without group_size", "set group_size, or leave it out")
