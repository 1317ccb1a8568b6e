"""The protocol, broken on purpose: one mistake each, of the kind a careful reader could make.

Proves that the checkers see. Every variant names the checkers that may catch it; one that nobody catches within a
few hundred seeds means that a checker is blind or that the simulation never goes there.
"""

from __future__ import annotations

from tests.sim.variants import (
    blame,
    events,
    groups,
    hangs,
    leases,
    lifelines,
    members,
    nodes,
    placement,
    updates,
    workers,
)
from tests.sim.variants.base import VARIANTS

__all__ = [
    "VARIANTS",
    "blame",
    "events",
    "groups",
    "hangs",
    "leases",
    "lifelines",
    "members",
    "nodes",
    "placement",
    "updates",
    "workers",
]
