"""How much an object of ours remembers: the items in all collections that can be reached from it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


def count_items(value: Any) -> int:
    """Items of collections, and bytes of texts, that `value` keeps. Functions and clocks are not looked into."""
    seen: set[int] = set()
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, bytes | str):
            total += len(one)
        elif isinstance(one, Mapping):
            total += len(one)
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            total += len(one)
            waiting += one
        else:
            waiting += _fields_of(one)
    return total


def _fields_of(one: Any) -> Iterator[Any]:
    if isinstance(one, msgspec.Struct):
        return (getattr(one, name) for name in one.__struct_fields__)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return (getattr(one, field.name) for field in dataclasses.fields(one) if hasattr(one, field.name))
    return iter(())
