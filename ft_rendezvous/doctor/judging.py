"""All checks, in the order in which a reader wants them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ft_rendezvous.doctor.checks import names, nodes, placing, reaching, slurm, software
from ft_rendezvous.doctor.findings import Examination, Finding, Status

CHECKS: tuple[Callable[[Examination], list[Finding]], ...] = (
    nodes.judge_reports,
    reaching.judge_endpoint,
    reaching.judge_port,
    reaching.judge_address,
    reaching.judge_families,
    names.judge_forward,
    names.judge_reverse,
    names.judge_clients,
    names.judge_store_start,
    reaching.judge_files,
    software.judge_torch,
    software.judge_numpy,
    software.judge_torchrun,
    software.judge_versions,
    placing.judge_settings,
    nodes.judge_infra_ranks,
    placing.judge_domains,
    placing.judge_spares,
    slurm.judge_flags,
    slurm.judge_no_kill,
    slurm.judge_tasks,
    nodes.judge_clocks,
)

_ORDER = (Status.FAIL, Status.WARN, Status.PASS)


def judge(seen: Examination) -> list[Finding]:
    """What must be mended first, then what should, then what is well."""
    found = [finding for check in CHECKS for finding in check(seen)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.status))
