"""Checks of Python, torch and this package: whether they exist, fit together, and are the same on all nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from ft_rendezvous.doctor.facts import NodeFacts, Torch
from ft_rendezvous.doctor.findings import Examination, Finding, Status
from ft_rendezvous.doctor.node_names import describe_nodes
from ft_rendezvous.text import duration

OLDEST, NEWEST = (2, 8), (2, 15)
SUPPORTED = "2.8 to 2.15"

HANDLED = "#118891, #135712, #194710, #194871"
"""Faults of torch's agent that this package works around; `ftr docs doctor` says what each is."""


def judge_torch(seen: Examination) -> list[Finding]:
    """Whether torch can be imported, in a version that this package supports."""
    verdicts: dict[tuple[Status, str, str], list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        verdicts[_judge_torch(node.software.torch)].append(node)
    found = []
    for (status, fact, remedy), nodes in verdicts.items():
        if status is Status.PASS:
            slowest = max(node.software.torch.import_s for node in nodes)
            fact += f"; it is imported in at most {duration(slowest)}"  # noqa: PLW2901
        found.append(Finding(check="torch", status=status, fact=fact, remedy=remedy, nodes=seen.names(nodes)))
    return found


def _judge_torch(torch: Torch) -> tuple[Status, str, str]:
    if torch.is_late:
        remedy = "a file system is slow when all nodes read it at once: try again, or use a larger --timeout"
        return Status.WARN, torch.error, remedy
    if torch.error:
        return Status.FAIL, f"torch cannot be used: {torch.error}", f"install torch {SUPPORTED} in this environment"
    release = tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2])
    if release < OLDEST:
        fact = f"torch {torch.version} is too old: its TCPStore cannot use a socket that is already open"
        return Status.FAIL, fact, f"install torch {SUPPORTED}"
    if torch.missing:
        fact = f"torch {torch.version} lacks parts that ft-rendezvous needs: {', '.join(torch.missing)}"
        return Status.FAIL, fact, f"install torch {SUPPORTED}, or a newer ft-rendezvous"
    if release > NEWEST:
        fact = f"torch {torch.version} is newer than any that ft-rendezvous was tested with"
        return Status.WARN, fact, f"it has all parts that are needed; if something goes wrong, try torch {SUPPORTED}"
    return Status.PASS, f"torch {torch.version}, and its known faults ({HANDLED}) are handled", ""


def judge_numpy(seen: Examination) -> list[Finding]:
    without = [node for node in seen.nodes if not node.software.torch.has_numpy and not node.software.torch.error]
    if not without:
        return []
    return [
        Finding(
            check="numpy",
            status=Status.WARN,
            fact="numpy is not installed: torch prints a warning in every worker",
            remedy="pip install numpy",
            nodes=seen.names(without),
        )
    ]


def judge_torchrun(seen: Examination) -> list[Finding]:
    """Whether the torchrun in PATH would find the backend."""
    found = []
    unknown = [node for node in seen.nodes if not node.software.is_registered]
    if unknown:
        found.append(
            Finding(
                check="torchrun",
                status=Status.FAIL,
                fact="torchrun would not find the backend ft: ft-rendezvous is not installed, only importable",
                remedy="install it with pip in the environment of torchrun",
                nodes=seen.names(unknown),
            )
        )
    absent = [node for node in seen.nodes if not node.software.torchrun]
    if absent:
        found.append(
            Finding(
                check="torchrun",
                status=Status.WARN,
                fact="torchrun is not in PATH",
                remedy="activate the environment in the job script, or call it by its full path",
                nodes=seen.names(absent),
            )
        )
    elsewhere: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        if node.software.torchrun and _folder(node.software.torchrun) != _folder(node.software.executable):
            elsewhere[node.software.torchrun].append(node)
    for path, nodes in elsewhere.items():
        found.append(
            Finding(
                check="torchrun",
                status=Status.WARN,
                fact=f"the torchrun in PATH is {path}, from another environment than this ftr "
                f"({_folder(nodes[0].software.executable)})",
                remedy="activate one environment: torchrun looks for the backend in its own environment",
                nodes=seen.names(nodes),
            )
        )
    if not found:
        fact = "torchrun is from this environment and finds the backend ft"
        found.append(Finding(check="torchrun", status=Status.PASS, fact=fact, nodes=seen.names(seen.nodes)))
    return found


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def judge_versions(seen: Examination) -> list[Finding]:
    """Whether versions are the same on all nodes."""
    found = []
    kinds: list[tuple[str, Status, Callable[[NodeFacts], str]]] = [
        ("ft-rendezvous", Status.FAIL, lambda node: node.software.ft_rendezvous),
        ("torch", Status.FAIL, lambda node: node.software.torch.version),
        ("Python", Status.WARN, lambda node: node.software.python),
    ]
    same = []
    for what, status, version_of in kinds:
        by_version: dict[str, list[NodeFacts]] = defaultdict(list)
        for node in seen.nodes:
            if version_of(node):
                by_version[version_of(node)].append(node)
        if len(by_version) == 1:
            same.append(f"{what} {next(iter(by_version))}")
        elif by_version:
            groups = sorted(by_version.items(), key=lambda group: -len(group[1]))
            versions = "; ".join(
                f"{version} on {describe_nodes(seen.names(nodes), len(seen.nodes))}" for version, nodes in groups[:3]
            )
            odd = [node for _, nodes in groups[1:] for node in nodes]
            found.append(
                Finding(
                    check="versions",
                    status=status,
                    fact=f"{what} is not the same everywhere: {versions}",
                    remedy="install the same everywhere",
                    nodes=seen.names(odd),
                )
            )
    if same:
        alike = " on all nodes" if len(seen.nodes) > 1 else ""
        found.append(Finding(check="versions", status=Status.PASS, fact=f"{', '.join(same)}{alike}"))
    return found
