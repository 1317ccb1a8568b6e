"""The commands of a run on Ray: what the actors start. Starts nothing."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ft_rendezvous.launch.local import OUTER_JOB_VARIABLES
from ft_rendezvous.launch.options import Options
from ft_rendezvous.launch.plan import LaunchedRun, make_run, serve_command, torchrun_command
from ft_rendezvous.launch.ray.actors import PYTHON, ProcessSpec
from ft_rendezvous.launch.ray.request import RayRequest, describe_resources
from ft_rendezvous.text import count

UNKNOWN_STORE = "store-host:29400"
"""Stands in a dry run for an endpoint that is known once Ray has placed the store."""


def launch_options(request: RayRequest) -> Options:
    return request.launch_options((PYTHON, "-m", "torch.distributed.run"), (PYTHON, "-m", "ft_rendezvous.cli.main"))


def plan_run(request: RayRequest, run_id: str, endpoint: str, log_dir: Path) -> LaunchedRun:
    """What all nodes have in common. Raises ConfigError if they could not work with it.

    Spares of a fixed run count towards MAX, as with the other launchers. An elastic run grows to MAX, and further nodes
    wait.
    """
    least, most = request.sizes
    extra = {"policy": "elastic"} if request.is_elastic else {}
    sizes = (least, most if request.is_elastic else request.node_count)
    options = launch_options(request)
    return make_run(options, run_id=run_id, sizes=sizes, endpoint=endpoint, log_dir=log_dir, extra=extra)


def node_process(request: RayRequest, run: LaunchedRun, node: int) -> ProcessSpec:
    command = torchrun_command(launch_options(request), run, request.nproc_per_node)
    return _process(request, run, command, f"node-{node}.log", {"FT_INFRA_RANK": str(node)})


def store_process(request: RayRequest, run: LaunchedRun) -> ProcessSpec:
    return _process(request, run, serve_command(launch_options(request), run), "store.log", {})


def _process(
    request: RayRequest, run: LaunchedRun, command: list[str], log: str, env: Mapping[str, str]
) -> ProcessSpec:
    token = os.environ.get("FT_STATE_TOKEN", "")
    return ProcessSpec(
        command=command,
        log=str(run.log_dir / log),
        cwd="" if has_own_directory(request) else os.getcwd(),
        env={**env, **({"FT_STATE_TOKEN": token} if token else {})},
        unset=list(OUTER_JOB_VARIABLES),
    )


def has_own_directory(request: RayRequest) -> bool:
    """Whether Ray gives every process a copy of a directory. If not, all machines share the driver's."""
    return "working_dir" in request.environment or bool(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"))


def log_dir_of(request: RayRequest, run_id: str) -> Path:
    """Absolute, so that it is the same on all machines. A copy that Ray makes is gone at the end of the run."""
    if request.log_dir is not None:
        return request.log_dir.absolute()
    base = Path(tempfile.gettempdir()) if has_own_directory(request) else Path.cwd()
    return base / "ft-logs" / run_id


def script_file(request: RayRequest) -> str:
    """The file that every machine must have. Empty for a module, which only Python can find."""
    return "" if request.script[0].startswith("-") else request.script[0]


def dry_run(request: RayRequest) -> list[str]:
    """What would be asked of Ray, and the commands of its actors, for people."""
    least = request.sizes[0]
    run_id = request.name or "RUN"
    endpoint = request.store if not request.has_own_store else UNKNOWN_STORE
    run = plan_run(request, run_id, endpoint, log_dir_of(request, run_id))
    each = describe_resources(request.bundle)
    lines = [
        f"# placement group min: {count(least, 'bundle')} of {each}, strategy {request.strategy or 'STRICT_SPREAD'}"
    ]
    lines += [f"# placement group node-{number}: 1 bundle of {each}" for number in range(least, request.node_count)]
    if request.has_own_store:
        lines.append(f"# one actor without CPUs ({request.store}):")
        lines.append(shlex.join(store_process(request, run).command))
    lines.append(f"# {count(request.node_count, 'actor')}, node N with FT_INFRA_RANK=N:")
    lines.append(shlex.join(node_process(request, run, 0).command))
    return lines
