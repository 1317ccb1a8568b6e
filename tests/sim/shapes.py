"""What one seed draws before anything happens: how many nodes, which settings, which rules, how long the faults last.

Placement rules are drawn by a generator of their own, so that a run without any is the same whatever rules there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy, Ranks, Spread
from ft_rendezvous.core.next_cycle import Grow

Rules = Mapping[str, Any]
"""Settings that say who is placed where, and how large a world is."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A run, before it begins."""

    settings: RunSettings
    node_count: int
    has_infra_ranks: bool
    has_domains: bool
    tells_workers: bool
    heals_at: float
    arrive_within_s: float
    has_faults: bool = True
    is_restless: bool = False
    """Workers of every cycle fail soon, until the world heals."""
    saves_every_s: float | None = None
    """How often workers write a checkpoint, and say so; if they do not, only a drain makes them."""
    updates_every_s: float | None = None
    """How often the workers of a node report updates; None if they do not."""
    healthy_s: tuple[float, float] = (0.3, 2.0)
    """How long workers take to end well once the world has healed."""
    has_latecomers: bool = False
    """More nodes come when the world has healed: it could be larger."""
    verdict_file_s: float = 0.0
    """How long the disk takes to write the verdict file."""
    log_line_s: float = 0.0
    """How long the reader of the host's log takes for a line."""
    is_hosted_by_node: bool = False
    """The first node hosts the store, and stays when its own part has ended; if not, `ftr serve` does."""


def crowd(count: int, groups: int | None = None) -> Shape:
    """Many nodes that come within half a second, in a world where nothing goes wrong; in so many replica groups."""
    group_size = 0 if groups is None else count // groups
    return Shape(
        settings=RunSettings(
            run_id="sim", min_nodes=count, max_nodes=count, group_size=group_size, has_lifelines=False
        ),
        node_count=count,
        has_infra_ranks=True,
        has_domains=True,
        tells_workers=True,
        heals_at=3600.0,
        arrive_within_s=0.5,
        has_faults=False,
    )


def calm(heals_at: float) -> Shape:
    """Three nodes and a spare, and nothing happens to them."""
    return replace(restless(heals_at), is_restless=False)


def restless(heals_at: float) -> Shape:
    """Three nodes and a spare, cycle after cycle."""
    return Shape(
        settings=RunSettings(
            run_id="sim",
            min_nodes=3,
            max_nodes=4,
            last_call_s=0.5,
            max_node_failures=0,
            crash_loop=0,
            has_lifelines=False,
        ),
        node_count=4,
        has_infra_ranks=True,
        has_domains=False,
        tells_workers=True,
        heals_at=heals_at,
        arrive_within_s=0.1,
        has_faults=False,
        is_restless=True,
    )


def draw_shape(rng: Random, min_nodes: int | None = None, has_faults: bool = True) -> Shape:
    """A small run: what goes wrong among thousands goes wrong among five."""
    min_nodes = min_nodes or rng.choice((1, 2, 2, 3, 3, 4, 5))
    spares = rng.choice((0, 0, 1, 1, 2, 3))
    lease_s = rng.choice((3.25, 4.0, 5.0))
    settings = RunSettings(
        run_id="sim",
        min_nodes=min_nodes,
        max_nodes=min_nodes + spares + rng.choice((0, 4)),
        lease_s=lease_s,
        beat_s=1.0,
        join_s=rng.uniform(3 * lease_s, 8 * lease_s),
        last_call_s=rng.choice((0.5, 2.0, lease_s, 2 * lease_s)),
        settle_s=rng.choice((0.0, 0.0, 0.3)),
        max_node_failures=0,
        max_node_losses=0,
        crash_loop=0,
        drain_grace_s=rng.choice((0.0, 2.0, 5.0)),
    )
    return Shape(
        settings=settings,
        node_count=min_nodes + spares,
        has_infra_ranks=rng.random() < 0.6,
        has_domains=rng.random() < 0.5,
        tells_workers=rng.random() < 0.5,
        heals_at=rng.uniform(2.0, 25.0) if has_faults else rng.uniform(0.0, 3.0),
        arrive_within_s=rng.choice((0.01, 0.5, 3.0)),
        has_faults=has_faults,
    )


# --- rules ------------------------------------------------------------------------------------------


def draw_rules(rng: Random) -> Rules:
    """None for half of the runs; for the others some, which bring each other out."""
    if rng.random() < 0.5:
        return {}
    rules: dict[str, Any] = {}
    blocks = rng.choices(({}, {"segment": 2}, {"unit_size": 2}, {"segment": 2, "unit_size": 2}), (40, 30, 20, 10))[0]
    rules.update(blocks)
    if rng.random() < 0.25:
        rules["spread"] = Spread.DOMAINS
    if rng.random() < 0.2:
        rules["ranks"] = Ranks.TOPOLOGY
    if rng.random() < 0.6 or not rules:
        rules |= {"policy": Policy.ELASTIC, "grow": rng.choice(list(Grow))}
    return rules


def draw_groups(rng: Random) -> Rules:
    """Rules of replica groups: for half of the runs."""
    if rng.random() < 0.5:
        return {}
    size = rng.choice((1, 2, 2, 2, 3))
    rules: dict[str, Any] = {
        "group_size": size,
        "min_groups": rng.choice((1, 1, 1, 2)),
        "max_group_failures": rng.choice((0, 2, 3)),
    }
    if size == 2 and rng.random() < 0.3:
        rules["segment"] = rng.choice((2, 4))
    if rng.random() < 0.2:
        rules["spread"] = Spread.DOMAINS
    if rng.random() < 0.2:
        rules["ranks"] = Ranks.TOPOLOGY
    if rng.random() < 0.5:
        rules["policy"] = Policy.ELASTIC
    return rules


def with_groups(shape: Shape, rules: Rules, rng: Random) -> Shape:
    """The same run in groups."""
    size = rules["group_size"]
    step = max(size, rules.get("segment", 1))
    is_elastic = rules.get("policy") is Policy.ELASTIC
    min_nodes = step * rng.choice((1, 2, 2, 3, 4) if step < 4 else (1, 2))
    max_nodes = min_nodes + step * rng.choice((1, 2) if is_elastic else (0, 1, 2))
    least = min(rules.get("min_groups", 1), min_nodes // size)
    settings = replace(shape.settings, **{**rules, "min_nodes": min_nodes, "max_nodes": max_nodes, "min_groups": least})
    return replace(
        shape,
        settings=settings,
        node_count=min_nodes + rng.choice((0, 1, 1, 2, 3)),
        has_domains=shape.has_domains or settings.placement_rules.needs_domain,
        healthy_s=(3.5, 5.5) if is_elastic else shape.healthy_s,
        has_latecomers=is_elastic,
    )


def with_limits(shape: Shape, rng: Random) -> Shape:
    """The same run with limits to what may fail: none for half of the runs, generous ones for most of the others."""
    shape = replace(
        shape,
        verdict_file_s=rng.choice((0.0, 0.0, 0.0, 1.0, 3600.0)),
        is_hosted_by_node=rng.random() < 0.5,
    )
    if rng.random() < 0.5:
        return shape
    settings = replace(
        shape.settings,
        max_cycles=rng.choice((0, 1000, 1000, 6, 3)),
        max_node_failures=rng.choice((0, 3, 3, 2, 1)),
        quarantine_s=rng.choice((3600.0, 3600.0, 10.0, 4.0)),
        crash_loop=rng.choice((0, 50, 5, 3)),
        crash_loop_s=rng.choice((30.0, 1.0)),
    )
    return replace(shape, settings=settings)


def draw_updates(rng: Random) -> float | None:
    """How often workers report updates: in a quarter of the runs, from rarely to several times per beat."""
    return rng.choice((0.1, 0.4, 3.0)) if rng.random() < 0.25 else None


def with_rules(shape: Shape, rules: Rules, rng: Random) -> Shape:
    """The same run under rules; as many nodes more as it needs to be possible."""
    if not rules:
        return shape
    settings = shape.settings
    block = max(rules.get("segment", 1), rules.get("unit_size", 1))
    missing = -settings.min_nodes % block
    max_nodes = settings.max_nodes + missing
    is_elastic = rules.get("policy") is Policy.ELASTIC
    if is_elastic:
        max_nodes = max(max_nodes, settings.min_nodes + missing + block)
    settings = replace(settings, min_nodes=settings.min_nodes + missing, max_nodes=max_nodes, **rules)
    can_grow = is_elastic and settings.grow is not Grow.NEXT
    must_save = can_grow and settings.grow is Grow.CHECKPOINT
    return replace(
        shape,
        settings=settings,
        node_count=shape.node_count + missing,
        has_domains=shape.has_domains or settings.placement_rules.needs_domain,
        saves_every_s=rng.choice((0.7, 3.0) if must_save else (None, 0.7, 3.0)),
        healthy_s=(3.5, 5.5) if can_grow else shape.healthy_s,
        has_latecomers=can_grow,
    )
