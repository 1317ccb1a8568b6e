"""Checks of the port of the lifelines: whether the store host can listen there, and which nodes reach it."""

from __future__ import annotations

from collections import defaultdict

from ft_rendezvous.doctor.facts import EndpointState, NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status


def judge_lifelines(seen: Examination) -> list[Finding]:
    """Whether every node that reaches the endpoint could hold a lifeline. Without one, it is judged by its lease."""
    lifelines = seen.endpoint.lifelines
    if lifelines is None:
        return []
    if lifelines.error:
        return [
            Finding(
                check="lifeline",
                status=Status.FAIL,
                fact=f"lifeline_port={lifelines.port} cannot be opened on the store host: {lifelines.error}",
                remedy="choose another one, or leave it out",
                nodes=seen.names(node for node in seen.nodes if node.task == seen.looked),
            )
        ]
    cut_off, reached = _divide(seen)
    where = f"port {lifelines.port} of the store host, for lifelines,"
    found = [
        Finding(
            check="lifeline",
            status=Status.WARN,
            fact=f"{where} cannot be reached: {error}; the death of such a node is noticed after "
            f"lease_timeout={seen.lease_s:g} s",
            remedy="open the port between the nodes (lifeline_port=N makes it a fixed one), or set lifeline=no",
            nodes=seen.names(nodes),
        )
        for error, nodes in cut_off.items()
    ]
    # A machine alone always reaches itself.
    if reached and (seen.expected > 1 or seen.endpoint.state is EndpointState.RUN):
        found.append(
            Finding(check="lifeline", status=Status.PASS, fact=f"{where} is reached", nodes=seen.names(reached))
        )
    return found


def _divide(seen: Examination) -> tuple[dict[str, list[NodeFacts]], list[NodeFacts]]:
    """The nodes that do not reach the port, by reason, and those that do.

    A node that does not reach the endpoint either has one problem, and another check tells of it.
    """
    cut_off: dict[str, list[NodeFacts]] = defaultdict(list)
    reached = []
    for node in seen.nodes:
        to_endpoint, attempts = seen.attempts.get(node.task, ()), seen.lifeline_attempts.get(node.task, ())
        if any(not attempt.error for attempt in attempts):
            reached.append(node)
        elif attempts and not (to_endpoint and all(attempt.error for attempt in to_endpoint)):
            cut_off[attempts[0].error].append(node)
    return cut_off, reached
