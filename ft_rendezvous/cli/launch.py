"""`ftr launch`: makes a plan, runs it, and returns the exit code. Reads the environment and asks scontrol."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.cli.serve import parse_conf
from ft_rendezvous.config.commands import CommandNotStarted, CommandTimeout, run_command
from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.local import free_port, plan_local
from ft_rendezvous.launch.lost_batch_script import is_abandoned
from ft_rendezvous.launch.options import Options
from ft_rendezvous.launch.plan import Plan
from ft_rendezvous.launch.run_end import NoRequeue, RunEnd, decide_requeue, launcher_exit_code
from ft_rendezvous.launch.runner import PlanRunner, await_endpoint, is_over, read_verdict, say
from ft_rendezvous.launch.slurm import (
    Allocation,
    awaited_endpoint,
    find_allocation,
    parse_srun_args,
    plan_slurm,
)
from ft_rendezvous.store import names

UNPUBLISHED = "host-of-the-first-task:29400"
"""Stands for an endpoint that another task of the array has not published yet."""
SLURM_COMMAND_TIMEOUT_S = 60.0
REQUEUE_TIMEOUT_S = 60.0
"""How long SLURM may take to end a job that it has queued again."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The command line as it was typed."""

    script: tuple[str, ...]
    local: str | None
    active: int | None
    nproc_per_node: str
    rdzv_conf: str
    store: str
    port: int | None
    log_dir: Path | None
    requeues: int
    is_each_task: bool
    srun_args: str
    is_dry_run: bool
    is_warm: bool = False


def launch_run(request: LaunchRequest) -> int:
    """Start the run, wait for its end, and return the exit code. Raises ConfigError."""
    env = os.environ
    options = _options(request, env)
    if request.requeues and request.local is not None:
        raise ConfigError("--requeue is for SLURM: with --local there is no queue")
    if request.is_each_task and not env.get("SLURM_ARRAY_JOB_ID"):
        raise ConfigError("--each-task is for job arrays, and this job is not in one: leave it out")
    if request.local is not None:
        run_id = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        return _carry_out(request, plan_local(options, request.local, run_id, free_port()), None)
    allocation = find_allocation(env, _ask_scontrol, _resolves, options.is_each_task, here=socket.gethostname())
    awaited = awaited_endpoint(options, allocation)
    plan = plan_slurm(options, allocation, None if awaited is None else UNPUBLISHED)
    if awaited is not None and request.is_dry_run:
        print(f"# {UNPUBLISHED} stands for the endpoint that the array's first task will write to {awaited}")
    elif awaited is not None:
        endpoint = await_endpoint(awaited, plan.run.join_s, lambda: is_over(plan.run))
        if endpoint is None:
            ended = RunEnd(read_verdict(plan.run.verdict_path, plan.run.run_id), ())
            say(f"run {plan.run.run_id} is over already: it {_describe_end(ended, plan)}")
            return launcher_exit_code(ended)
        plan = plan_slurm(options, allocation, endpoint)
    return _carry_out(request, plan, allocation)


def _options(request: LaunchRequest, env: Mapping[str, str]) -> Options:
    return Options(
        script=request.script,
        active=request.active,
        nproc_per_node=tuple(part.strip() for part in request.nproc_per_node.split(",")),
        conf=parse_conf(request.rdzv_conf),
        store=request.store,
        port=request.port,
        log_dir=request.log_dir,
        requeues=request.requeues,
        is_each_task=request.is_each_task,
        srun_args=parse_srun_args(request.srun_args),
        is_warm=request.is_warm,
        torchrun=(env.get("TORCHRUN") or "torchrun",),
        ftr=(env.get("FTR") or "ftr",),
        state_token=env.get("FT_STATE_TOKEN", ""),
    )


def _carry_out(request: LaunchRequest, plan: Plan, allocation: Allocation | None) -> int:
    if request.is_dry_run:
        print("\n".join(plan.lines()))
        return 0
    run = plan.run
    spares = run.node_count - run.min_nodes
    nodes = f"{run.min_nodes} active and {spares} spare nodes with {request.nproc_per_node} workers each"
    say(f"run {run.run_id}: {nodes}, store at {run.endpoint}, logs {plan.logs}")
    if plan.serve_elsewhere:
        say(f"start its store on that host, in {Path.cwd()}: {shlex.join(plan.serve_elsewhere)}")
    ended = PlanRunner(plan).run()
    say(f"run {run.run_id} {_describe_end(ended, plan)}")
    if allocation is not None:
        _requeue(ended, allocation, request.requeues)
    return launcher_exit_code(ended)


def _describe_end(ended: RunEnd, plan: Plan) -> str:
    """How the run ended, and where to look if it did not end well."""
    report = ended.report
    if report is None:
        if not any(ended.exit_codes):
            return "has ended, without a verdict"
        return f"ended without a verdict: the store host was lost or never started; logs {plan.logs}"
    if report.verdict is VerdictKind.SUCCEEDED:
        return f"succeeded in cycle {report.cycle}"
    return (
        f"{report.verdict} in cycle {report.cycle}: {report.reason}; logs {plan.logs}, verdict {plan.run.verdict_path}"
    )


def _requeue(ended: RunEnd, allocation: Allocation, requeues: int) -> None:
    decision = decide_requeue(ended, allocation.restarts, requeues)
    if isinstance(decision, NoRequeue):
        if decision.reason:
            say(f"not queued again: {decision.reason}")
        return
    say(f"queueing job {allocation.job_id} again ({allocation.restarts + 1} of {requeues}): {decision.reason}")
    try:
        _ask_scontrol(f"requeue {allocation.job_id}")
    except ConfigError as error:
        say(f"{error}; submit the job with --requeue to allow it")
        return
    time.sleep(REQUEUE_TIMEOUT_S)  # SLURM ends this process in this time.


def end_if_abandoned(job_id: str, batch_node: str, is_requeued: bool) -> None:
    """End a job if it has lost its batch script. Raises ConfigError if SLURM refuses."""
    if not is_abandoned(batch_node, os.environ, _ask_scontrol, time.sleep):
        return
    is_requeued = is_requeued and os.environ.get("FT_IS_RETRYABLE", "1") == "1"
    then = "queueing it again" if is_requeued else "ending it"
    say(f"{batch_node}, which ran the batch script of job {job_id}, is lost: {then}")
    if is_requeued:
        _ask_scontrol(f"requeue {job_id}")
    else:
        _run_slurm(["scancel", job_id])


def _ask_scontrol(arguments: str) -> str:
    return _run_slurm(["scontrol", *arguments.split()])


def _run_slurm(command: Sequence[str]) -> str:
    """What a command of SLURM prints. Raises ConfigError if it has no answer."""
    words = " ".join(command)
    try:
        done = run_command(command, timeout_s=SLURM_COMMAND_TIMEOUT_S)
    except CommandNotStarted as error:
        raise ConfigError(f"{command[0]} is not in PATH, though SLURM_JOB_ID is set: load SLURM's module") from error
    except CommandTimeout as error:
        raise ConfigError(f"{words} has not answered within {SLURM_COMMAND_TIMEOUT_S:g} s: is slurmctld up?") from error
    if done.exit_code != 0:
        raise ConfigError(f"{words} failed: {done.message}")
    return done.stdout.decode(errors="replace")


def _resolves(name: str) -> bool:
    try:
        return bool(names.RESOLVER.look_up(name))
    except (names.UnknownName, names.SilentResolver):
        return False
