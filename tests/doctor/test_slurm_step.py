"""What SLURM's environment and its controller say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ft_rendezvous.doctor.collector import collector_ports
from ft_rendezvous.doctor.facts import Controller, Step
from ft_rendezvous.doctor.slurm_step import ask_controller, asks_no_kill, defeating_flags, find_step

IN_STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-4]",
}


def test_a_step() -> None:
    step = find_step({**IN_STEP, "SLURM_WAIT": "5", "SLURM_CPUS_ON_NODE": "9", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"})
    assert step == Step(
        job_id="7",
        step_id="3",
        task=2,
        tasks=4,
        hosts=("n1", "n2", "n3", "n4"),
        launched_from="10.0.0.1",
        flags={"SLURM_WAIT": "5"},
    )
    assert step.key == "7.3"


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
        {**IN_STEP, "SLURM_STEP_NUM_TASKS": ""},
        {**IN_STEP, "SLURM_PROCID": "4"},
        {**IN_STEP, "SLURM_PROCID": "-1"},
        {**IN_STEP, "SLURM_STEP_NUM_TASKS": "four"},
    ],
)
def test_a_batch_script_and_a_broken_environment_are_alone(env: dict[str, str]) -> None:
    step = find_step(env)
    assert step is not None
    assert (step.task, step.tasks) == (0, 1)


def test_outside_of_slurm_there_is_no_step() -> None:
    assert find_step({"SLURM_PROCID": "0"}) is None


def test_processes_of_a_step_find_the_same_ports_and_never_the_endpoints() -> None:
    ports = collector_ports("7.3", 29400)
    assert len(ports) == 4
    assert all(20_000 <= port < 29_000 for port in ports)
    assert collector_ports("7.3", 29400) == ports != collector_ports("7.4", 29400)
    assert ports[0] not in collector_ports("7.3", ports[0])


@pytest.mark.parametrize(
    ("script", "is_asked"),
    [
        ("#!/bin/bash\n#SBATCH --nodes=6\n#SBATCH --no-kill --ntasks-per-node=1\n\nsrun x\n", True),
        ("#!/bin/bash\n#SBATCH -k\nsrun x\n", True),
        ("#!/bin/bash\n#SBATCH --no-kill=off\nsrun x\n", False),
        ("#!/bin/bash\n#SBATCH --job-name='--no-kill me'\nsrun x\n", False),
        ("#!/bin/bash\n##SBATCH --no-kill\nsrun x\n", False),
        ("#!/bin/bash\nsrun x\n#SBATCH --no-kill\n", False),
        ("#!/bin/bash\n#SBATCH --comment='open\n#SBATCH --no-kill\n", True),
        ("", False),
    ],
)
def test_a_batch_script_that_asks_to_outlive_its_nodes(script: str, is_asked: bool) -> None:
    assert asks_no_kill(script) is is_asked


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("srun --kill-on-bad-exit=1 torchrun train.py", ["--kill-on-bad-exit=1"]),
        ("srun --kill-on-bad-exit -N 2 torchrun train.py", ["--kill-on-bad-exit"]),
        ("exec srun -K --wait=30 torchrun train.py", ["-K", "--wait=30"]),
        ("/usr/bin/srun -W 5 \\\n  -K1 torchrun train.py", ["-W 5", "-K1"]),
        ("srun -K a\nsrun -K b", ["-K"]),
        ("srun --kill-on-bad-exit=0 --wait=0 -W0 torchrun train.py", []),
        ("srun torchrun train.py -K --wait=30", []),
        ("# srun -K torchrun train.py", []),
        ("mysrun -K torchrun train.py", []),
    ],
)
def test_a_batch_script_whose_srun_ends_all_nodes_with_one(command: str, found: list[str]) -> None:
    assert list(defeating_flags(f"#!/bin/bash\n#SBATCH --nodes=6\n{command}\n")) == found


def scontrol(place: Path, script: str) -> dict[str, str]:
    program = place / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{place}:/usr/bin:/bin"}


SHOW_CONFIG = """
case "$1 $2" in
  "show config") printf 'KillOnBadExit           = 1\\nKillWait                = 30 sec\\nWaitTime = 15 sec\\n' ;;
  "write batch_script") printf '#!/bin/bash\\n#SBATCH --no-kill\\nsrun -K x\\n' ;;
  *) exit 1 ;;
esac
"""
SHOW_JOB = """
[ "$2" = job ] || exit 1
echo 'JobId=7 SubmitLine=sbatch --no-kill -N 6 run.sh WorkDir=/home/a StdErr=/dev/null'
"""


def test_the_controller_is_asked_for_what_only_it_knows(tmp_path: Path) -> None:
    found = ask_controller(Step(job_id="7"), scontrol(tmp_path, SHOW_CONFIG))
    assert found == Controller(kill_on_bad_exit=True, wait_s=15, no_kill=True, script_flags=("-K",))


def test_a_command_line_that_slurm_shows_counts_too(tmp_path: Path) -> None:
    assert ask_controller(Step(job_id="7"), scontrol(tmp_path, SHOW_JOB)).no_kill


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "head -c 100 /dev/urandom"])
def test_a_controller_that_does_not_tell_leaves_everything_unknown(tmp_path: Path, script: str) -> None:
    assert ask_controller(Step(job_id="7"), scontrol(tmp_path, script)) == Controller()


def test_without_scontrol_everything_is_unknown(tmp_path: Path) -> None:
    assert ask_controller(Step(job_id="7"), {"PATH": str(tmp_path)}) == Controller()


def test_a_variable_of_sbatch_counts_as_no_kill(tmp_path: Path) -> None:
    step = Step(job_id="7", flags={"SBATCH_NO_KILL": ""})
    assert ask_controller(step, {"PATH": str(tmp_path)}).no_kill
