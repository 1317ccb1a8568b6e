"""All checks, in the order in which a reader needs them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ft_rendezvous.doctor.checks import dns, endpoint, lifelines, nodes, placement, slurm, software
from ft_rendezvous.doctor.findings import Examination, Finding, Status

CHECKS: tuple[Callable[[Examination], list[Finding]], ...] = (
    nodes.judge_reports,
    endpoint.judge_endpoint,
    endpoint.judge_port,
    lifelines.judge_lifelines,
    endpoint.judge_address,
    endpoint.judge_families,
    dns.judge_forward,
    dns.judge_reverse,
    dns.judge_clients,
    dns.judge_store_start,
    endpoint.judge_files,
    software.judge_torch,
    software.judge_numpy,
    software.judge_torchrun,
    software.judge_versions,
    placement.judge_settings,
    nodes.judge_infra_ranks,
    placement.judge_domains,
    placement.judge_spares,
    slurm.judge_flags,
    slurm.judge_no_kill,
    slurm.judge_tasks,
    nodes.judge_clocks,
)

_ORDER = (Status.FAIL, Status.WARN, Status.PASS)


def judge(seen: Examination) -> list[Finding]:
    """All findings: first the failures, then the warnings, then the rest."""
    found = [finding for check in CHECKS for finding in check(seen)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.status))
