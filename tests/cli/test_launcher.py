"""`launcher.sh`: what it would run, what it runs, and what it says when it cannot."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher.sh"
TRAIN = ROOT / "examples" / "train.py"
EXAMPLES = sorted((ROOT / "examples" / "slurm").glob("*.sbatch"))
COMMAND_TIMEOUT_S = 30.0


def test_help_names_every_option(shell: Shell) -> None:
    done = shell.run(LAUNCHER, "--help")
    assert done.returncode == 0
    for option in (
        *("--local", "--active", "--nproc-per-node", "--rdzv-conf", "--store", "--port", "--log-dir", "--requeue"),
        *("--each-task", "--srun-args", "--warm", "--dry-run"),
    ):
        assert f" {option} " in done.stdout
    for word in ("first-node|batch-host|HOST:PORT", "SIGUSR1", "Exit code: 0", "TORCHRUN", " FTR ", "verdict.json"):
        assert word in done.stdout


def test_dry_run_prints_one_command_per_node_and_runs_nothing(shell: Shell) -> None:
    options = ("--nproc-per-node", "2", "--rdzv-conf", "lease_timeout=4", "--port", "29999", "--log-dir", "my logs")
    done = shell.run(LAUNCHER, "--local", "3+1", *options, "--dry-run", "--", "train.py", "--name", "a b")
    assert done.returncode == 0, done.stderr
    made, *nodes, wait = done.stdout.splitlines()
    assert (made, wait) == ("mkdir -p 'my logs'", "wait")
    assert len(nodes) == 4
    for rank, line in enumerate(nodes):
        assert f" FT_INFRA_RANK={rank} torchrun --nnodes=3:4 --nproc-per-node=2 --max-restarts=" in line
        assert " --rdzv-backend=ft --rdzv-endpoint=localhost:29999 --rdzv-id=local-" in line
        assert ",lease_timeout=4' --logs-specs=ft '--log-dir=my logs' --tee=3 train.py --name 'a b' " in line
        assert line.endswith(f" >'my logs/node-{rank}.log' 2>&1 </dev/null &")
    assert list(shell.place.iterdir()) == []


# --- in a job, with a stand-in for SLURM ------------------------------------------------------------

SCONTROL = """#!/bin/sh
case "$1 $2" in
  "show hostnames") echo n1 ;;
  "show node") echo NodeName=n1 NodeAddr=192.0.2.7 ;;
  "show config") echo "TopologyPlugin = topology/tree" ;;
esac
"""
SRUN = """#!/bin/sh
printf '%s\\n' srun "$@" >given
"""


def in_a_job(shell: Shell, nodes: int, **more: str) -> dict[str, str]:
    """The environment of a batch script; srun writes down what it is given."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (shell.place / name).write_text(text)
        (shell.place / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": "n[1-9]"}
    return {**job, "SLURMD_NODENAME": "n1", "PATH": f"{shell.place}:{shell.env['PATH']}", **more}


def task_of_array(task: int) -> dict[str, str]:
    facts = {"JOB_ID": 40, "TASK_ID": task, "TASK_COUNT": 3, "TASK_MIN": 0}
    return {f"SLURM_ARRAY_{name}": str(value) for name, value in facts.items()}


def test_dry_run_in_a_job_prints_exactly_what_is_run(shell: Shell) -> None:
    env = in_a_job(shell, 6)
    options = ("--active", "4", "--nproc-per-node", "8", "--srun-args", "--comment 'two words'", "--requeue", "2")
    command = (*options, "--", "train.py", "--name", "a b")
    message = shell.run(LAUNCHER, "--dry-run", *command, timeout_s=COMMAND_TIMEOUT_S, **env)
    assert message.returncode == 0, message.stderr
    assert not (shell.place / "given").exists()
    done = shell.run(LAUNCHER, *command, timeout_s=COMMAND_TIMEOUT_S, **env)
    assert done.returncode == 0, done.stderr
    made, srun, wait = message.stdout.splitlines()
    assert (made, wait) == ("mkdir -p ft-logs/42.0", "wait")
    assert [*(shell.place / "given").read_text().splitlines(), "</dev/null", "&"] == shlex.split(srun)


def test_the_command_of_a_store_elsewhere_is_printed(shell: Shell) -> None:
    env = in_a_job(shell, 2)
    options = ("--store", "stable:2000", "--rdzv-conf", "lease_timeout=9")
    done = shell.run(LAUNCHER, *options, "--", "train.py", timeout_s=COMMAND_TIMEOUT_S, **env)
    (line,) = (line for line in done.stderr.splitlines() if "ftr serve" in line)
    message, _, command = line.partition(": ftr ")
    assert message == f"launcher: start its store on that host, in {shell.place}"
    *words, conf = shlex.split(command)
    assert words == ["serve", "--endpoint=stable:2000", "--rdzv-id=42.0", "--nnodes=2:2"]
    assert {"verdict_file=ft-logs/42.0/verdict.json", "domain_from=slurm-topology", "lease_timeout=9"} <= set(
        conf.removeprefix("--rdzv-conf=").split(",")
    )


def test_dry_run_says_what_it_cannot_know(shell: Shell) -> None:
    env = in_a_job(shell, 2, **task_of_array(1))
    message = shell.run(LAUNCHER, "--dry-run", "--active", "4", "--", "train.py", timeout_s=COMMAND_TIMEOUT_S, **env)
    assert message.returncode == 0, message.stderr
    first, *_, srun, _wait = message.stdout.splitlines()
    stands_for = first.split()[1]
    assert (
        first == f"# {stands_for} stands for the endpoint that the array's first task will write to ft-logs/40/endpoint"
    )
    assert f" --rdzv-endpoint={stands_for} " in srun


def test_a_task_that_starts_after_the_end_has_nothing_to_do(shell: Shell) -> None:
    """Tasks start when SLURM has room for them, and it may be that the run did not need this one."""
    (shell.place / "ft-logs" / "40").mkdir(parents=True)
    verdict = '{"run_id": "40", "verdict": "succeeded", "reason": "", "cycle": 3}'
    (shell.place / "ft-logs" / "40" / "verdict.json").write_text(verdict)
    options = ("--active", "4", "--rdzv-conf", "join_timeout=3600", "--requeue", "2")
    env = in_a_job(shell, 2, **task_of_array(2))
    done = shell.run(LAUNCHER, *options, "--", "train.py", timeout_s=COMMAND_TIMEOUT_S, **env)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "launcher: run 40 is over already: it succeeded in cycle 3\n"
    assert not (shell.place / "given").exists()


OWN_SETTINGS = {
    "plain": ("4:4", "8", "join_timeout=60"),
    "hot_spares": ("4:6", "8", "lease_timeout=10,beat_interval=2"),
    "job_array": ("4:6", "8", "join_timeout=3600"),
    "preemptible": ("3:4", "8", "drain_grace_s=60"),
    "heterogeneous": ("4:5", "4", "lease_timeout=5"),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_works_as_it_stands(shell: Shell, example: Path) -> None:
    """The tests on a cluster bring settings of their own; these are the ones that users get."""
    given = [word for line in example.read_text().splitlines() if line.startswith("#SBATCH") for word in line.split()]
    nodes = [word.partition("=")[2] for word in given if word.startswith("--nodes=")]
    more: dict[str, str] = {}
    if example.stem == "job_array":
        assert "--array=0-2" in given
        more = task_of_array(0)
    if example.stem == "heterogeneous":
        more = {f"SLURM_JOB_NUM_NODES_HET_GROUP_{part}": count for part, count in enumerate(nodes)}
        more["SLURM_HET_SIZE"] = str(len(nodes))
    env = in_a_job(shell, int(nodes[0]), **more)
    (shell.place / "launcher.sh").write_text(f'#!/bin/sh\nexec {LAUNCHER} --dry-run "$@"\n')
    (shell.place / "launcher.sh").chmod(0o755)
    done = shell.run("bash", example, "train.py", "--epochs", "3", timeout_s=COMMAND_TIMEOUT_S, **env)
    assert done.returncode == 0, done.stderr
    nnodes, nproc, conf = OWN_SETTINGS[example.stem]
    words = shlex.split(done.stdout)
    assert {f"--nnodes={nnodes}", f"--nproc-per-node={nproc}"} <= set(words)
    assert {word.endswith(f",{conf}") for word in words if word.startswith("--rdzv-conf=")} == {True}
    assert words[-6:] == ["train.py", "--epochs", "3", "</dev/null", "&", "wait"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_submitted_by_a_test(example: Path) -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "slurm").glob("test_*.py"))
    assert f'submitter.example("{example.name}"' in tests.replace("(\n        ", "(")


# --- what cannot work -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "train.py"], "pass --local 3+1"),
        (["--local", "3+1"], "end the command with -- train.py"),
        (["--local", "three", "--", "train.py"], "for example 3+1"),
        (["--local", "0+1", "--", "train.py"], "has no active node"),
        (["--local", "2", "--active", "1", "--", "train.py"], "--active is for SLURM"),
        (["--local", "1", "--store", "there:29400", "--", "train.py"], "--store there:29400 is for SLURM"),
        (["--local", "1", "--nproc-per-node", "8,4", "--", "train.py"], "heterogeneous SLURM job"),
        (["--local", "1", "--rdzv-conf", "lease", "--", "train.py"], "'lease' is not key=value"),
        (["--local", "1", "--requeue", "2", "--", "train.py"], "--requeue is for SLURM"),
        (["--local", "1", "--each-task", "--", "train.py"], "--each-task is for job arrays"),
    ],
)
def test_a_wrong_command_is_reported_in_one_line(shell: Shell, arguments: list[str], message: str) -> None:
    done = shell.run(LAUNCHER, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--local"], "Option '--local' requires an argument"),
        (["--nodes", "3"], "No such option: --nodes"),
        (["--local", "1", "--port", "99999", "--", "train.py"], "'--port'"),
    ],
)
def test_an_option_that_does_not_exist_is_reported(shell: Shell, arguments: list[str], message: str) -> None:
    done = shell.run(LAUNCHER, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_ftr_the_next_step_is_reported(shell: Shell) -> None:
    done = shell.run(LAUNCHER, "--local", "1", "--", "train.py", FTR="no-such-ftr")
    assert done.returncode == 2
    assert done.stderr == (
        "launcher.sh: 'no-such-ftr' is not in PATH: activate the environment that has ft-rendezvous, or set FTR\n"
    )


@pytest.mark.parametrize("script", [LAUNCHER, ROOT / ".ci" / "run", *EXAMPLES], ids=lambda path: path.name)
def test_scripts_pass_shellcheck(shell: Shell, script: Path) -> None:
    done = shell.run(Path(sys.executable).parent / "shellcheck", script)
    assert done.stdout == ""
    assert done.returncode == 0


NEWER_THAN_BASH_4_0 = r"\$\{\w+@[A-Z]|wait -n|local -n|declare -n|mapfile -d|EPOCH(SECONDS|REALTIME)|\[\[ -v |\|& "


@pytest.mark.parametrize("script", [LAUNCHER, *EXAMPLES], ids=lambda path: path.name)
def test_scripts_use_nothing_that_came_after_bash_4(script: Path) -> None:
    assert re.findall(NEWER_THAN_BASH_4_0, script.read_text()) == []


@pytest.mark.timeout(240)
def test_local_run_succeeds_on_all_nodes(shell: Shell) -> None:
    options = ("--local", "2+1", "--rdzv-conf", "lease_timeout=4,beat_interval=0.5", "--log-dir", "logs")
    done = shell.run(LAUNCHER, *options, "--", TRAIN, "--steps", "12", "--step-s", "0", timeout_s=200)
    logs = {path.name: path.read_text() for path in (shell.place / "logs").glob("*.log")}
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    assert sorted(logs) == ["node-0.log", "node-1.log", "node-2.log"]
    assert done.stderr.splitlines()[-1].endswith(" succeeded in cycle 1")
    assert len(list((shell.place / "logs").glob("node-*/cycle-1/0/stdout.log"))) == 2, "the spare has no worker"
    message = "".join(logs.values())
    assert message.count("step 12 loss") == 1
    assert "closed verdict=succeeded" in message
    assert (shell.place / "checkpoint.pt").exists()
    assert shell.left_after_a_moment() == []


@pytest.mark.timeout(120)
def test_a_failing_node_fails_the_launcher(shell: Shell) -> None:
    (shell.place / "fail").write_text("#!/bin/sh\nexit $FT_INFRA_RANK\n")
    (shell.place / "fail").chmod(0o755)
    done = shell.run(LAUNCHER, "--local", "1+1", "--", "train.py", TORCHRUN=str(shell.place / "fail"))
    assert done.returncode == 1
    assert "node 1 exited 1, its log is ft-logs/" in done.stderr
    assert "node 0" not in done.stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_reach_every_node(shell: Shell, signum: signal.Signals, code: int) -> None:
    """With a stand-in for torchrun that says which signal it got."""
    stand_in = shell.place / "stand-in"
    stand_in.write_text(
        "#!/usr/bin/env bash\n"
        "trap 'echo got TERM; exit 1' TERM\ntrap 'echo got INT; exit 1' INT\n"
        'touch "ready-$FT_INFRA_RANK"\nfor ((i = 0; i < 600; i++)); do sleep 0.1; done\n'
    )
    stand_in.chmod(0o755)
    launcher = shell.start(LAUNCHER, "--local", "2+1", "--log-dir", "logs", "--", "train.py", TORCHRUN=str(stand_in))
    deadline = time.monotonic() + 30
    while len(list(shell.place.glob("ready-*"))) < 3:
        assert time.monotonic() < deadline, "the nodes did not start"
        time.sleep(0.02)
    launcher.send_signal(signum)
    launcher.communicate(timeout=30)
    assert launcher.returncode == code
    name = signum.name.removeprefix("SIG")
    assert [path.read_text() for path in sorted((shell.place / "logs").iterdir())] == [f"got {name}\n"] * 3
    assert shell.left_after_a_moment() == []
