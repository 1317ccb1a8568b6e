"""Checks of settings and spares. The functions that seal a cycle also answer what a run of these nodes could lose."""

from __future__ import annotations

from collections import defaultdict

from ft_rendezvous.core.explain import foresee, lacks_place
from ft_rendezvous.core.snapshot import Snapshot, SnapshotNode, restore
from ft_rendezvous.doctor.facts import NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status
from ft_rendezvous.doctor.node_names import describe_nodes
from ft_rendezvous.text import count


def judge_settings(seen: Examination) -> list[Finding]:
    """Whether the settings can work on every node, and are the same."""
    found: list[Finding] = []
    wrong: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        if node.run_error or node.node_error:
            # Without the name of the node, the same error of many nodes is one finding.
            error = (node.run_error or node.node_error).replace(f"node {node.host}", "this node")
            wrong[error].append(node)
    found += [
        Finding(
            check="settings",
            status=Status.FAIL,
            fact=error,
            remedy="ftr settings lists every key, ftr docs placement says where a node's place comes from",
            nodes=seen.names(nodes),
        )
        for error, nodes in wrong.items()
    ]
    readings: dict[tuple[tuple[str, str], ...], list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        if not node.run_error:
            readings[tuple(sorted(node.settings.items()))].append(node)
    if len(readings) > 1:
        groups = sorted(readings.items(), key=lambda group: -len(group[1]))
        usual = dict(groups[0][0])
        keys = {key for reading, _ in groups[1:] for key, value in reading if usual.get(key) != value}
        found.append(
            Finding(
                check="settings",
                status=Status.FAIL,
                fact=f"nodes read different settings: {', '.join(sorted(keys))}; the run refuses a node that differs",
                remedy="use one --rdzv-conf, and one config file, on all nodes",
                nodes=seen.names(node for _, nodes in groups[1:] for node in nodes),
            )
        )
    found += [Finding(check="settings", status=Status.WARN, fact=fact, remedy=remedy) for fact, remedy in seen.remarks]
    if not found:
        found.append(Finding(check="settings", status=Status.PASS, fact="settings are valid"))
    return found


def judge_spares(seen: Examination) -> list[Finding]:
    """How many of these nodes would train, and which losses the others could cover."""
    rules = seen.rules
    is_part = seen.expected == 1 or any(node.step is not None and node.step.is_array for node in seen.nodes)
    if rules is None or is_part:
        return []  # A single node, or a task of an array, does not know the other nodes.
    nodes = tuple(
        SnapshotNode(infra_rank=node.infra_rank, domain=node.domain, unit=node.unit, addr=node.host, pid=node.pid)
        for node in seen.nodes
    )
    try:
        arrived, _ = restore(Snapshot(nodes))
    except ValueError:
        return []  # Two nodes have one infra rank: another check says so.
    arrived = {name: arrival for name, arrival in arrived.items() if not lacks_place(arrival.node, rules)}
    outlook = foresee(arrived, (), rules)
    sizes = f"--nnodes={rules.min_nodes}:{rules.max_nodes}"
    if outlook.lack is not None:
        return [
            Finding(
                check="spares",
                status=Status.FAIL if seen.are_sizes_given else Status.WARN,
                fact=f"with {sizes} these nodes would wait for more: {outlook.lack}",
                remedy="add nodes, or lower MIN of --nnodes",
            )
        ]
    trains = sum(line.rank is not None for line in outlook.lines)
    domains = {node.domain for node in seen.nodes if node.domain is not None}
    places = f" in {count(len(domains), 'domain')}" if domains else ""
    cover = outlook.cover
    assert cover is not None, "there is a world"
    fact = f"{trains:,} of {count(len(nodes), 'node')}{places} would train; spares cover {cover}"
    if not seen.are_sizes_given:
        return [Finding(check="spares", status=Status.PASS, fact=f"{fact}; --nnodes MIN:MAX says how many train")]
    if cover.any_nodes > 0 or trains > rules.min_nodes:
        return [Finding(check="spares", status=Status.PASS, fact=f"{fact} ({sizes})")]
    return [
        Finding(
            check="spares",
            status=Status.WARN,
            fact=f"{fact} ({sizes}): the loss of a node would make the run wait for a replacement",
            remedy="start more nodes than MIN, or lower MIN; ftr docs placement says how many are needed",
        )
    ]


def judge_domains(seen: Examination) -> list[Finding]:
    """Whether some nodes have a domain and others have none: nodes without one are placed first, and apart."""
    without = [node for node in seen.nodes if node.domain is None]
    if not without or len(without) == len(seen.nodes):
        return []
    return [
        Finding(
            check="domains",
            status=Status.WARN,
            fact=f"{describe_nodes(seen.names(without), len(seen.nodes))} of {count(len(seen.nodes), 'node')} have no "
            "domain, but the others have one",
            remedy="set domain_from for all, or FT_DOMAIN_ID on each; see ftr docs placement",
            nodes=seen.names(without),
        )
    ]
