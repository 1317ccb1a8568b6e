"""Checks of names and addresses: how long the resolver takes.

A TCPStore looks up the name of every client on its only thread. So a slow reverse lookup pauses the whole run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ft_rendezvous.doctor.facts import Lookup, NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status
from ft_rendezvous.text import count, duration

SLOW_LOOKUP_S = 0.05
STALLING_LOOKUP_S = 1.0
"""A reverse lookup that takes longer than this lets leases run out while the store waits."""

REVERSE_REMEDY = (
    "give these addresses a name in DNS or in /etc/hosts of every node that may host a store, also in the form "
    "::ffff:a.b.c.d"
)


def _mend_reverse(nodes: Iterable[NodeFacts]) -> str:
    if any(node.resolver_options for node in nodes):
        return REVERSE_REMEDY
    return REVERSE_REMEDY + "; or start with RES_OPTIONS='timeout:1 attempts:1', which limits a lookup to a second"


def status_of(seconds: float) -> Status:
    if seconds > STALLING_LOOKUP_S:
        return Status.FAIL
    return Status.WARN if seconds > SLOW_LOOKUP_S else Status.PASS


def judge_reverse(seen: Examination) -> list[Finding]:
    """How long the resolver of each node takes for the node's own addresses: any node may host the workers' store."""
    by_status: dict[Status, list[tuple[NodeFacts, Lookup]]] = defaultdict(list)
    for node in seen.nodes:
        if node.reverse:
            slowest = max(node.reverse, key=lambda lookup: lookup.seconds)
            by_status[status_of(slowest.seconds)].append((node, slowest))
    found = []
    for status, slow in by_status.items():
        node, lookup = max(slow, key=lambda pair: pair[1].seconds)
        nodes = seen.names(node for node, _ in slow)
        options = f" with RES_OPTIONS={node.resolver_options!r}" if node.resolver_options else ""
        if status is Status.PASS:
            fact = f"a reverse lookup takes at most {duration(lookup.seconds)}{options}"
        else:
            (name,) = seen.names([node])
            fact = (
                f"a reverse lookup takes {_at_least(lookup)}{options} ({lookup.of} on {name}): a store pauses that "
                "long at every connection"
            )
        remedy = "" if status is Status.PASS else _mend_reverse(node for node, _ in slow)
        found.append(Finding(check="reverse-dns", status=status, fact=fact, remedy=remedy, nodes=nodes))
    return found


def judge_clients(seen: Examination) -> list[Finding]:
    """How long the machine of the endpoint takes for its clients, each and all together."""
    if seen.clients is None or not seen.clients.lookups:
        return []
    lookups = seen.clients.lookups
    nodes = seen.names(node for node in seen.nodes if node.task == seen.looked)
    slowest = max(lookups, key=lambda lookup: lookup.seconds)
    status = status_of(slowest.seconds)
    mean_s = sum(lookup.seconds for lookup in lookups) / len(lookups)
    start_s = mean_s * seen.connections_per_node * seen.expected
    untried = f"; there was no time for {seen.clients.untried:,} more" if seen.clients.untried else ""
    fact = f"the store host looks up {count(len(lookups), 'client')}"
    fact += f" in {'' if status is Status.PASS else 'up to '}{_at_least(slowest)} each ({slowest.of}){untried}"
    if status is Status.PASS and start_s > seen.lease_s:
        status = Status.WARN
        fact += f": {duration(start_s)} of pauses until all {seen.expected:,} nodes are connected"
    return [
        Finding(
            check="client-dns",
            status=status,
            fact=fact,
            remedy="" if status is Status.PASS else _mend_reverse(seen.hosts),
            nodes=nodes,
        )
    ]


def judge_store_start(seen: Examination) -> list[Finding]:
    """How long a real TCPStore takes to answer its first client. This measures the pause itself, not its cause."""
    timed = [(node, node.software.torch.store_s) for node in seen.nodes]
    slow = [(node, seconds) for node, seconds in timed if seconds is not None and seconds > STALLING_LOOKUP_S]
    if not slow:
        return []
    longest = max(seconds for _, seconds in slow)
    return [
        Finding(
            check="store-start",
            status=Status.FAIL,
            fact=f"a TCPStore takes {duration(longest)} to answer its first client",
            remedy="reverse lookups on this node's loopback address are the usual cause: "
            + _mend_reverse(node for node, _ in slow),
            nodes=seen.names(node for node, _ in slow),
        )
    ]


def judge_forward(seen: Examination) -> list[Finding]:
    """Whether names are found, and how fast."""
    found = []
    unknown = [node for node in seen.nodes if not node.endpoint.found]
    if unknown:
        worst = unknown[0].endpoint
        fact = (
            f"the endpoint's name {worst.of} does not resolve"
            if worst.is_over
            else (f"the endpoint's name {worst.of} is not answered within {duration(worst.seconds)}")
        )
        found.append(
            Finding(
                check="forward-dns",
                status=Status.FAIL,
                fact=f"{fact}{f' ({worst.error})' if worst.error else ''}",
                remedy="use a name or an address that every node knows: scontrol show hostnames lists SLURM's",
                nodes=seen.names(unknown),
            )
        )
    nameless = [node for node in seen.nodes if not node.own_name.found]
    if nameless:
        found.append(
            Finding(
                check="forward-dns",
                status=Status.WARN,
                fact="a node's own host name does not resolve on it: gloo and others look it up",
                remedy="add it to DNS or /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
                nodes=seen.names(nameless),
            )
        )
    answered = [node for node in seen.nodes if node.endpoint.found and node.own_name.found]
    slow = [node for node in answered if _slowest(node).seconds > STALLING_LOOKUP_S]
    quick = [node for node in answered if _slowest(node).seconds <= STALLING_LOOKUP_S]
    if slow:
        lookup = max((_slowest(node) for node in slow), key=lambda lookup: lookup.seconds)
        found.append(
            Finding(
                check="forward-dns",
                status=Status.WARN,
                fact=f"looking up a name takes {duration(lookup.seconds)} ({lookup.of})",
                remedy="every start waits for it, some starts several times: check /etc/resolv.conf",
                nodes=seen.names(slow),
            )
        )
    if quick:
        took = max(_slowest(node).seconds for node in quick)
        fact = f"names of the endpoint and of the node itself are found in at most {duration(took)}"
        found.append(Finding(check="forward-dns", status=Status.PASS, fact=fact, nodes=seen.names(quick)))
    return found


def _slowest(node: NodeFacts) -> Lookup:
    lookups: Sequence[Lookup] = (node.endpoint, node.own_name)
    return max(lookups, key=lambda lookup: lookup.seconds)


def _at_least(lookup: Lookup) -> str:
    return duration(lookup.seconds) if lookup.is_over else f"more than {duration(lookup.seconds)}"
