"""Decides about an operator's request, from the state of the run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ft_rendezvous.core.lifecycle import Phase
from ft_rendezvous.core.model import Answer, Request, RequestKind, Verdict
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
        case RequestKind.RESTART if run.drain is not None and not run.drain.is_covered:
            return False, "a node drains and no other node can take its place: a restart would end the run"
        case RequestKind.RESTART:
            return True, f"cycle {run.cycle_id} ends, the next one opens"
