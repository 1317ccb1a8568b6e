"""What was seen in one scenario, and what to call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Want(StrEnum):
    """How a node should exit."""

    ZERO = "0"
    NOT_ZERO = "not 0"
    ANY = "any"
    """The scenario killed it."""


class Outcome(StrEnum):
    FINE = "fine"
    FLAWED = "flawed"
    """It came to the right end, and something happened on the way that should not have."""
    FAILED = "failed"
    HUNG = "hung"
    """A node was still there when the time was over."""


@dataclass(slots=True)
class Story:
    """What happened to one job."""

    wants: dict[str, Want] = field(default_factory=dict)
    """By node."""
    exits: dict[str, int | None] = field(default_factory=dict)
    """By node; negative for a signal, None if the harness had to end it."""
    missed: str = ""
    """The first thing that was waited for and did not come."""
    flaws: list[str] = field(default_factory=list)
    recovery_s: float | None = None
    """From the fault until every node of the new world had trained a step."""
    took_s: float = 0.0

    @property
    def wrong_exits(self) -> list[str]:
        return [name for name, want in self.wants.items() if not is_wanted(self.exits.get(name), want)]

    @property
    def outcome(self) -> Outcome:
        return classify(self)

    def as_dict(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in self.__slots__}
        return {"outcome": self.outcome, **named}


def story_from(written: Mapping[str, Any]) -> Story:
    """A story as it was written."""
    fields = {name: value for name, value in written.items() if name != "outcome"}
    return Story(**{**fields, "wants": {node: Want(want) for node, want in written["wants"].items()}})


def is_wanted(code: int | None, want: Want) -> bool:
    match want:
        case Want.ANY:
            return True
        case Want.ZERO:
            return code == 0
        case Want.NOT_ZERO:
            return code not in (0, None)


def classify(story: Story) -> Outcome:
    """The worst that can be said of it."""
    if any(story.exits.get(name) is None for name in story.wants):
        return Outcome.HUNG
    if story.missed or story.wrong_exits:
        return Outcome.FAILED
    return Outcome.FLAWED if story.flaws else Outcome.FINE


def describe(story: Story) -> str:
    """The facts in one line."""
    facts: list[str] = []
    if story.recovery_s is not None:
        facts.append(f"trained again after {story.recovery_s:.1f} s")
    if story.missed:
        facts.append(story.missed)
    facts.extend(story.flaws)
    facts.append(f"exits: {_exits(story.exits, story.wants)}")
    return "; ".join(facts)


def _exits(exits: Mapping[str, int | None], wants: Mapping[str, Want]) -> str:
    shown = (name for name in exits if wants.get(name) is not Want.ANY)
    return ", ".join(f"{name} {'none' if exits[name] is None else exits[name]}" for name in shown)
