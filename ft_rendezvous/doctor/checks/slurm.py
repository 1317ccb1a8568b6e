"""Checks of SLURM: settings that would end all nodes when one is lost, so that spares are of no use."""

from __future__ import annotations

from collections import defaultdict

from ft_rendezvous.doctor.facts import NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status

OFF = ("", "0", "off", "no", "false")


def judge_flags(seen: Examination) -> list[Finding]:
    """Whether srun would end all nodes because one node ended."""
    found = []
    in_jobs = [node for node in seen.nodes if node.step is not None]
    if not in_jobs:
        return []
    killing = _with_flag(in_jobs, "SLURM_KILL_BAD_EXIT")
    if killing:
        found.append(
            Finding(
                check="slurm-flags",
                status=Status.FAIL,
                fact="SLURM_KILL_BAD_EXIT is set: srun ends all nodes when one of them fails",
                remedy="unset it, or pass srun --kill-on-bad-exit=0, as launcher.sh does",
                nodes=seen.names(killing),
            )
        )
    for value, nodes in _by_value(in_jobs, "SLURM_WAIT").items():
        found.append(
            Finding(
                check="slurm-flags",
                status=Status.FAIL,
                fact=f"SLURM_WAIT={value}: srun ends all nodes {value} s after the first has ended",
                remedy="unset it, or pass srun --wait=0, as launcher.sh does",
                nodes=seen.names(nodes),
            )
        )
    site = seen.controller
    if site is not None and site.kill_on_bad_exit and not killing:
        found.append(
            Finding(
                check="slurm-flags",
                status=Status.WARN,
                fact="this cluster's default (KillOnBadExit=1) is that srun ends all nodes when one of them fails",
                remedy="start with launcher.sh, or pass srun --kill-on-bad-exit=0",
            )
        )
    if site is not None and site.wait_s:
        found.append(
            Finding(
                check="slurm-flags",
                status=Status.WARN,
                fact=f"this cluster's default (WaitTime={site.wait_s}) is that srun ends all nodes {site.wait_s} s "
                "after the first has ended",
                remedy="start with launcher.sh, or pass srun --wait=0",
            )
        )
    if site is not None and site.script_flags:
        found.append(
            Finding(
                check="slurm-flags",
                status=Status.WARN,
                fact=f"the batch script passes {', '.join(site.script_flags)} to srun, which then ends all nodes when "
                "one of them has ended",
                remedy="leave it out where torchrun is started, or start with launcher.sh",
            )
        )
    if not found:
        fact = "nothing tells srun to end all nodes because one has ended"
        found.append(Finding(check="slurm-flags", status=Status.PASS, fact=fact))
    return found


def judge_no_kill(seen: Examination) -> list[Finding]:
    """Whether the job outlives a node. SLURM does not always show it, so only a yes is certain."""
    if seen.controller is None or seen.expected == 1:
        return []
    if seen.controller.no_kill:
        fact = "the job was submitted with --no-kill; srun needs it too, and launcher.sh passes it"
        return [Finding(check="no-kill", status=Status.PASS, fact=fact)]
    return [
        Finding(
            check="no-kill",
            status=Status.WARN,
            fact="nothing shows that the job was submitted with --no-kill, without which SLURM ends it with its first "
            "lost node",
            remedy="submit with sbatch --no-kill (launcher.sh has the line), and pass it to srun; SLURM shows only "
            "what the batch script says: if you passed it on the command line, ignore this",
        )
    ]


def judge_tasks(seen: Examination) -> list[Finding]:
    """One task per node: each runs one torchrun, and torchrun starts the workers."""
    on_host: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in seen.nodes:
        if node.step is not None:
            on_host[node.host].append(node)
    crowded = {host: nodes for host, nodes in on_host.items() if len(nodes) > 1}
    if not crowded:
        return []
    most = max(len(nodes) for nodes in crowded.values())
    return [
        Finding(
            check="slurm-tasks",
            status=Status.WARN,
            fact=f"srun started up to {most} tasks on one node; torchrun is started once per node",
            remedy="pass srun --ntasks-per-node=1",
            nodes=tuple(crowded),
        )
    ]


def _with_flag(nodes: list[NodeFacts], name: str) -> list[NodeFacts]:
    return [node for node in nodes if node.step is not None and node.step.flags.get(name, "").lower() not in OFF]


def _by_value(nodes: list[NodeFacts], name: str) -> dict[str, list[NodeFacts]]:
    by_value: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in _with_flag(nodes, name):
        assert node.step is not None
        by_value[node.step.flags[name]].append(node)
    return by_value
