"""`ftr doctor`: checks one machine, or all nodes as the tasks of an srun. One process prints the findings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

from ft_rendezvous.cli.exit_codes import FAILED, MISUSED
from ft_rendezvous.cli.serve import parse_conf
from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.doctor.collector import NoCollector
from ft_rendezvous.doctor.examine import examine_as_follower, examine_as_leader
from ft_rendezvous.doctor.facts import Step
from ft_rendezvous.doctor.findings import Examination, Finding
from ft_rendezvous.doctor.gather import DoctorOptions
from ft_rendezvous.doctor.report import as_json, print_report
from ft_rendezvous.doctor.slurm_step import find_step
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import parse_nnodes


def parse_doctor(endpoint: str, run_id: str, nnodes: str | None, conf: str, timeout_s: float) -> DoctorOptions:
    """The options, checked one by one. Settings that cannot work together are a finding, not an error."""
    host, port = parse_endpoint(endpoint)
    sizes = None if nnodes is None else parse_nnodes(nnodes)
    return DoctorOptions(host=host, port=port, run_id=run_id, sizes=sizes, conf=parse_conf(conf), timeout_s=timeout_s)


def run_doctor(  # noqa: PLR0917
    endpoint: str, run_id: str, nnodes: str | None, conf: str, timeout_s: float, is_json: bool
) -> int:
    """Examine; the first task prints the findings. Returns the exit code, the same on all nodes."""
    env: Mapping[str, str] = dict(os.environ)
    step = find_step(env)
    is_first = step is None or step.task == 0
    try:
        options = parse_doctor(endpoint, run_id, nnodes, conf, timeout_s)
    except ConfigError:
        if is_first:
            raise
        return MISUSED  # The first task prints the error for all.
    if step is not None and not is_first:
        return _report_to_leader(options, step, env)

    def tell(seen: Examination, findings: Sequence[Finding]) -> None:
        if is_json:
            print(as_json(seen, findings).decode())
        else:
            print_report(Console(), seen, findings, sys.stdout.isatty())
        sys.stdout.flush()

    return examine_as_leader(options, step, env, tell)


def _report_to_leader(options: DoctorOptions, step: Step, env: Mapping[str, str]) -> int:
    try:
        return examine_as_follower(options, step, env)
    except NoCollector as error:
        name = env.get("SLURMD_NODENAME") or os.uname().nodename
        print(f"ftr: infra rank {step.task} ({name}) could not report: {error}", file=sys.stderr)
        return FAILED
