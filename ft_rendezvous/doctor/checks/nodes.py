"""Checks of the nodes: which of them reported, with which infra ranks and clocks."""

from __future__ import annotations

from collections import defaultdict

from ft_rendezvous.doctor.facts import NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status
from ft_rendezvous.doctor.node_names import fold_names
from ft_rendezvous.text import count, duration, listing


def judge_reports(seen: Examination) -> list[Finding]:
    """Whether all nodes have reported."""
    found: list[Finding] = []
    if seen.missing:
        ranks = fold_names(str(task) for task in seen.missing)
        hosts = _hosts_of(seen, seen.missing)
        whom = f"infra rank{'' if len(seen.missing) == 1 else 's'} {ranks}"
        found.append(
            Finding(
                check="reports",
                status=Status.FAIL,
                fact=f"{count(len(seen.missing), 'node')} of {seen.expected} never reported within "
                f"{seen.waited_s:g} s: {whom}{f' ({fold_names(hosts)})' if hosts else ''}",
                remedy="run ftr doctor there alone: the machine is down, its environment lacks ft-rendezvous, or it "
                "cannot reach the first node; a slow file system needs a larger --timeout",
                nodes=hosts,
            )
        )
    if seen.other_versions:
        versions = sorted({hello.version for hello in seen.other_versions})
        found.append(
            Finding(
                check="reports",
                status=Status.FAIL,
                fact=f"another version of ft-rendezvous is there ({listing(versions, 3)}) and could not be examined",
                remedy="install the same ft-rendezvous everywhere",
                nodes=tuple(hello.host for hello in seen.other_versions),
            )
        )
    if seen.lost:
        gone = [node for node in seen.nodes if node.task in seen.lost]
        found.append(
            Finding(
                check="reports",
                status=Status.FAIL,
                fact="reported, and did not answer later",
                remedy="find out what ended it (dmesg, the SLURM log of that node), and run ftr doctor again",
                nodes=seen.names(gone),
            )
        )
    if not found and seen.expected > 1:
        found.append(
            Finding(check="reports", status=Status.PASS, fact=f"all {seen.expected:,} nodes reported", nodes=())
        )
    return found


def _hosts_of(seen: Examination, tasks: list[int]) -> tuple[str, ...]:
    """The hosts of tasks that never reported, if SLURM runs one task per host."""
    steps = [node.step for node in seen.nodes if node.step is not None]
    if not steps or len(steps[0].hosts) != seen.expected:
        return ()
    return tuple(steps[0].hosts[task] for task in tasks)


def judge_infra_ranks(seen: Examination) -> list[Finding]:
    """No two nodes may have the same infra rank: the run would refuse the second."""
    by_rank: dict[int, list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        if node.infra_rank is not None:
            by_rank[node.infra_rank].append(node)
    twice = {rank: nodes for rank, nodes in sorted(by_rank.items()) if len(nodes) > 1}
    if twice:
        duplicates = [f"infra rank {rank} belongs to {listing(seen.names(nodes), 3)}" for rank, nodes in twice.items()]
        return [
            Finding(
                check="infra-ranks",
                status=Status.FAIL,
                fact=listing(duplicates, 2),
                remedy="give every node its own: srun's SLURM_PROCID does; else FT_INFRA_RANK or infra_rank= in "
                "--rdzv-conf",
                nodes=seen.names(node for nodes in twice.values() for node in nodes),
            )
        ]
    if len(seen.nodes) > 1 and by_rank:
        without = len(seen.nodes) - len(by_rank)
        tail = f"; {count(without, 'node')} without" if without else ""
        return [Finding(check="infra-ranks", status=Status.PASS, fact=f"every infra rank is there once{tail}")]
    return []


def judge_clocks(seen: Examination) -> list[Finding]:
    """Only for information: the protocol compares no clocks."""
    if not seen.offsets_s:
        return []
    offsets = {0: (0.0, 0.0), **seen.offsets_s}
    apart = max(offset for offset, _ in offsets.values()) - min(offset for offset, _ in offsets.values())
    unsure = max(error for _, error in offsets.values())
    return [
        Finding(
            check="clock",
            status=Status.PASS,
            fact=f"clocks differ by {duration(apart)} (give or take {duration(unsure)}); the protocol does not need "
            "them to agree, but it helps when you compare logs",
        )
    ]
