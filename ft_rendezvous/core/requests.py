"""Decides about an operator's request, from the state of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ft_rendezvous.core.lifecycle import Phase
from ft_rendezvous.core.model import Answer, Request, RequestKind, Verdict, group_names
from ft_rendezvous.core.next_cycle import DrainState
from ft_rendezvous.text import NAMED

MAX_ANSWER_BYTES = 7 << 20
"""A TCPStore closes the connection of a client that sets more than 8 MiB. Here the client is the coordinator."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the run, as far as a request depends on it."""

    phase: Phase
    cycle_id: int
    verdict: Verdict | None
    drain: DrainState | None
    found: tuple[str, ...]
    """Names of the live nodes that a drain request means and that do not drain yet."""
    roster: str = ""
    """The list of nodes, if the request asks for it."""
    groups: Mapping[int, str] | None = None
    """The groups, and why each of them cannot restart; empty if it can. None if the run has only one."""


def decide_request(request: Request, run: Standing) -> Answer:
    """Grant or refuse the request, and say what follows or why not."""
    is_granted, text = _judge(request, run)
    return Answer(request.incarnation, is_granted, text)


def _judge(request: Request, run: Standing) -> tuple[bool, str]:
    if run.phase is Phase.CLOSED:
        return False, f"the run is closed: {run.verdict}"
    match request.kind:
        case RequestKind.CLOSE:
            return True, "closed"
        case RequestKind.ROSTER if len(msgspec.json.encode(run.roster)) > MAX_ANSWER_BYTES:
            return False, "its roster is larger than one value of the store may be"
        case RequestKind.ROSTER:
            return True, run.roster
        case RequestKind.DRAIN if not run.found:
            return False, f"no live node {request.target!r} that is not draining"
        case RequestKind.DRAIN:
            return True, f"asked to go: {', '.join(run.found[:NAMED])}"
        case RequestKind.RESTART if run.phase is not Phase.SEALED:
            return False, f"cycle {run.cycle_id} is not sealed yet: no workers run that could restart"
        case RequestKind.RESTART if request.target:
            return _judge_group(request.target, run.groups)
        case RequestKind.RESTART if run.drain is not None and not run.drain.is_covered:
            return False, "a node drains and no other node can take its place: a restart would end the run"
        case RequestKind.RESTART if run.groups is not None:
            return True, "all groups restart"
        case RequestKind.RESTART:
            return True, f"cycle {run.cycle_id} ends, the next one opens"


def _judge_group(target: str, groups: Mapping[int, str] | None) -> tuple[bool, str]:
    if groups is None:
        return False, "this run has one group: restart it without naming a group"
    obstacles = {str(group): obstacle for group, obstacle in groups.items()}
    if target not in obstacles:
        return False, f"there is no group {target!r}: the run has {group_names(sorted(groups))}"
    if obstacles[target]:
        return False, f"group {target} cannot restart: {obstacles[target]}"
    return True, f"group {target} restarts, the others train on"
