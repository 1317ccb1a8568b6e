"""`ftr doctor`: a preflight, alone or as every task of an srun; one process tells what was found."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

from ft_rendezvous.cli.exit_codes import FAILED, MISUSED
from ft_rendezvous.cli.serve import parse_conf, parse_nnodes
from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.doctor.examine import follow, lead
from ft_rendezvous.doctor.facts import Step
from ft_rendezvous.doctor.findings import Examination, Finding
from ft_rendezvous.doctor.gather import Asked
from ft_rendezvous.doctor.meeting import NobodyThere
from ft_rendezvous.doctor.report import as_json, print_report
from ft_rendezvous.doctor.steps import find_step
from ft_rendezvous.errors import ConfigError


def parse_doctor(endpoint: str, run_id: str, nnodes: str | None, conf: str, timeout_s: float) -> Asked:
    """What is asked, as far as it can be wrong by itself. Settings that cannot work are a finding."""
    host, port = parse_endpoint(endpoint)
    sizes = None if nnodes is None else parse_nnodes(nnodes)
    return Asked(host=host, port=port, run_id=run_id, sizes=sizes, conf=parse_conf(conf), timeout_s=timeout_s)


def run_doctor(  # noqa: PLR0917
    endpoint: str, run_id: str, nnodes: str | None, conf: str, timeout_s: float, is_json: bool
) -> int:
    """Examine, and tell it if this is the first task. Returns the exit code, the same on all."""
    env: Mapping[str, str] = dict(os.environ)
    step = find_step(env)
    is_first = step is None or step.task == 0
    try:
        asked = parse_doctor(endpoint, run_id, nnodes, conf, timeout_s)
    except ConfigError:
        if is_first:
            raise
        return MISUSED  # The first task tells it, once for all.
    if step is not None and not is_first:
        return _follow(asked, step, env)

    def tell(seen: Examination, findings: Sequence[Finding]) -> None:
        if is_json:
            print(as_json(seen, findings).decode())
        else:
            print_report(Console(), seen, findings, sys.stdout.isatty())
        sys.stdout.flush()

    return lead(asked, step, env, tell)


def _follow(asked: Asked, step: Step, env: Mapping[str, str]) -> int:
    try:
        return follow(asked, step, env)
    except NobodyThere as error:
        name = env.get("SLURMD_NODENAME") or os.uname().nodename
        print(f"ftr: infra rank {step.task} ({name}) could not report: {error}", file=sys.stderr)
        return FAILED
