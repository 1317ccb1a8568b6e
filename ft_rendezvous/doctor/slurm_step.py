"""What SLURM says about this process: in the environment and, for one node, by its controller."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from ft_rendezvous.config.commands import CommandError, run_command
from ft_rendezvous.config.schema import is_digits
from ft_rendezvous.doctor.facts import Controller, Step
from ft_rendezvous.doctor.node_names import expand_names

FLAGS = ("SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_NO_KILL", "SBATCH_NO_KILL")
CONTROLLER_TIMEOUT_S = 5.0

_SRUN = re.compile(r"(?:^|[\s/;&|(])srun(?=\s)(.*?)(?:\s(?:\S*/)?(?:torchrun|ftr|python\S*|bash|sh)\s|$)")
"""The options of an srun, up to the program it starts."""
_DEFEATING = re.compile(r"(?<!\S)(?:--kill-on-bad-exit(?:=1)?|-K1?|--wait[= ][1-9]\d*|-W ?[1-9]\d*)(?!\S)")


def find_step(env: Mapping[str, str]) -> Step | None:
    """The job and step this process belongs to; None outside of SLURM.

    A batch script has SLURM_PROCID and SLURM_NTASKS too, but only srun gives a step's number of tasks.
    """
    job_id = env.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    flags = {name: env[name] for name in FLAGS if name in env}
    is_array = "SLURM_ARRAY_JOB_ID" in env
    step_id, tasks, task = (env.get(f"SLURM_{name}", "") for name in ("STEP_ID", "STEP_NUM_TASKS", "PROCID"))
    if not (step_id and is_digits(tasks) and is_digits(task) and int(task) < int(tasks)):
        return Step(job_id=job_id, is_array=is_array, flags=flags)
    return Step(
        job_id=job_id,
        step_id=step_id,
        task=int(task),
        tasks=int(tasks),
        hosts=tuple(expand_names(env.get("SLURM_STEP_NODELIST", ""))),
        launched_from=env.get("SLURM_LAUNCH_NODE_IPADDR", ""),
        is_array=is_array,
        flags=flags,
    )


def ask_controller(step: Step, env: Mapping[str, str]) -> Controller:
    """Ask SLURM's controller. What it does not say stays unknown."""
    conf = _scontrol("show", "config", env=env)
    kill = re.search(r"^KillOnBadExit\s*=\s*(\d+)", conf, re.MULTILINE)
    wait = re.search(r"^WaitTime\s*=\s*(\d+)", conf, re.MULTILINE)
    script = _scontrol("write", "batch_script", step.job_id, "-", env=env)
    no_kill = (
        step.flags.get("SBATCH_NO_KILL", "off").lower() != "off"
        or asks_no_kill(script)
        or _was_submitted_so(_scontrol("show", "job", "--oneliner", step.job_id, env=env))
    )
    return Controller(
        kill_on_bad_exit=None if kill is None else kill[1] != "0",
        wait_s=None if wait is None else int(wait[1]),
        no_kill=True if no_kill else None,
        script_flags=defeating_flags(script),
    )


def asks_no_kill(script: str) -> bool:
    """Whether the #SBATCH lines of a batch script ask for it. Lines after the first command do not count."""
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                continue
            if "--no-kill" in words or "-k" in words:
                return True
        elif line.strip() and not line.startswith("#"):
            return False
    return False


def defeating_flags(script: str) -> tuple[str, ...]:
    """Options of srun in a batch script that end all nodes when one ends. A task cannot see its srun's options."""
    found: dict[str, None] = {}
    for line in script.replace("\\\n", " ").splitlines():
        srun = None if line.lstrip().startswith("#") else _SRUN.search(line)
        if srun is not None:
            found |= dict.fromkeys(_DEFEATING.findall(srun[1]))
    return tuple(found)


def _was_submitted_so(job: str) -> bool:
    """Whether the command line of sbatch had it. Only newer versions of SLURM show that line."""
    line = re.search(r"\bSubmitLine=(.*?)(?: [A-Z]\w+=|$)", job)
    return line is not None and bool({"--no-kill", "-k"} & set(line[1].split()))


def _scontrol(*arguments: str, env: Mapping[str, str]) -> str:
    """What scontrol prints; nothing if it does not exist, fails, or takes too long."""
    try:
        done = run_command(["scontrol", *arguments], timeout_s=CONTROLLER_TIMEOUT_S, env=env)
    except CommandError:
        return ""
    return done.stdout.decode(errors="replace") if done.exit_code == 0 else ""
