"""All benchmarks, by name. A benchmark is a module with a NAME and its cases."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import codec, form, placement, read, scale
from benchmarks.measure import Case, Finding

FINDERS: dict[str, Callable[[bool], list[Finding]]] = {read.NAME: read.findings, scale.NAME: scale.findings}
"""What is counted rather than contested, by benchmark."""

BENCHMARKS: dict[str, Callable[[bool], list[Case]]] = {
    module.NAME: module.cases for module in (codec, placement, read, form, scale)
}
