"""`ftr drain`, `ftr restart`, `ftr close`: ask a run for something, and say what came of it."""

from __future__ import annotations

from ft_rendezvous.cli.exits import FAILED
from ft_rendezvous.core.model import RequestKind, View

PATIENCE_S = 10.0
"""How long the coordinator may take to act: it looks several times per second."""


def operate(endpoint: str, kind: RequestKind, target: str, reason: str) -> int:
    """Ask, wait for the coordinator's answer, print it. Returns the exit code."""
    # It imports torch, which takes seconds; a bad option is told before.
    from ft_rendezvous.operator import Operator  # noqa: PLC0415

    operator = Operator(endpoint)
    before = operator.ask(kind, target, reason)
    after = operator.wait_for_change(before, PATIENCE_S)
    if after is None and kind is not RequestKind.CLOSE:
        print(f"ftr: run {operator.run_id!r} did nothing within {PATIENCE_S:g} s: {_nothing(kind, target, before)}")
        return FAILED
    print(f"run {operator.run_id!r}: {_answer(kind, target, after)}")
    return 0


def _nothing(kind: RequestKind, target: str, before: View) -> str:
    if kind is RequestKind.DRAIN:
        return f"no live node is {target!r}, or it is draining already; name an infra rank, an address or address:pid"
    if before.sealed is None:
        return f"cycle {before.cycle_id} is not sealed yet: nothing trains that could be restarted"
    return "see the log of the store host"


def _answer(kind: RequestKind, target: str, after: View | None) -> str:
    if after is None:
        return "it was asked to close, and its store is gone"
    if after.closed is not None:
        return f"closed, {after.closed.verdict}"
    if kind is RequestKind.DRAIN and after.called is not None:
        return f"{target} is asked to give up its place in cycle {after.cycle_id}"
    return f"cycle {after.cycle_id} is open because {after.opened.why}"
