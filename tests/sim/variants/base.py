"""What a broken variant is, and the list of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.sim import checkers
from tests.sim.checkers import Checker
from tests.sim.host import SimHost
from tests.sim.shapes import Rules
from tests.sim.world import Result, World

Patches = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to be wrong, and who must notice: nobody else looks."""

    name: str
    caught_by: frozenset[str]
    broken: Patches
    host_class: type[SimHost] = SimHost
    focus: tuple[str, ...] = ()
    """The faults that bring it out; without them it takes more seeds."""
    rules: Rules = field(default_factory=dict)
    """The placement rules under which it is wrong."""

    def run(self, seed: int) -> Result:
        with self.broken():
            world = World(seed, host_class=self.host_class, focus=self.focus, checks=self.checks, rules=self.rules)
            return world.run()

    @property
    def checks(self) -> tuple[type[Checker], ...]:
        return tuple(checker for checker in checkers.ALL if checker.__name__ in self.caught_by)


VARIANTS: dict[str, Variant] = {}


def variant(
    *caught_by: str, host_class: type[SimHost] = SimHost, focus: tuple[str, ...] = (), **rules: Any
) -> Callable[[Patches], Patches]:
    """Register a variant, with the names of the checkers that may catch it."""

    def register(patches: Patches) -> Patches:
        name = patches.__name__
        VARIANTS[name] = Variant(name, frozenset(caught_by), patches, host_class, focus, rules)
        return patches

    return register


@contextmanager
def all_of(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    """Several patches as one."""
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield
