"""All benchmarks, by name. A benchmark is a module with a NAME and its cases."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import (
    codec,
    failing,
    form,
    groups,
    hangs,
    on_ray,
    placement,
    read,
    recovery,
    scale,
    state,
    steady,
    updates,
    warm,
)
from benchmarks.measure import Case, Finding

FINDERS: dict[str, Callable[[bool], list[Finding]]] = {
    module.NAME: module.findings
    for module in (failing, read, form, recovery, hangs, groups, steady, scale, updates, warm)
}
"""What is counted rather than contested, by benchmark."""

BENCHMARKS: dict[str, Callable[[bool], list[Case]]] = {
    module.NAME: module.cases
    for module in (
        codec,
        placement,
        failing,
        read,
        form,
        recovery,
        warm,
        hangs,
        groups,
        on_ray,
        steady,
        state,
        scale,
        updates,
    )
}
