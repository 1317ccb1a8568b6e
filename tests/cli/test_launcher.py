"""`launcher.sh`: what it would run, what it runs, and what it says when it cannot."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher.sh"
TRAIN = ROOT / "examples" / "train.py"


def test_help_names_every_option(shell: Shell) -> None:
    done = shell.run(LAUNCHER, "--help")
    assert done.returncode == 0
    for option in ("--local", "--active", "--nproc-per-node", "--rdzv-conf", "--port", "--log-dir", "--dry-run"):
        assert f"  {option}" in done.stdout


def test_dry_run_prints_one_command_per_node_and_runs_nothing(shell: Shell) -> None:
    options = ("--nproc-per-node", "2", "--rdzv-conf", "lease_timeout=4", "--port", "29999", "--log-dir", "my logs")
    done = shell.run(LAUNCHER, "--local", "3+1", *options, "--dry-run", "--", "train.py", "--name", "a b")
    assert done.returncode == 0, done.stderr
    made, *nodes = done.stdout.splitlines()
    assert made == r"mkdir -p my\ logs "
    assert len(nodes) == 4
    for rank, line in enumerate(nodes):
        assert f" FT_INFRA_RANK={rank} torchrun --nnodes=3:4 --nproc-per-node=2 --max-restarts=1000 " in line
        assert " --rdzv-backend=ft --rdzv-endpoint=localhost:29999 --rdzv-id=local-" in line
        assert rf" --rdzv-conf=lease_timeout=4 train.py --name a\ b >my\ logs/node-{rank}.log 2>&1 " in line
    assert list(shell.place.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--", "train.py"], "pass --local 3+1"),
        (["--local", "3+1"], "end the command with -- train.py"),
        (["--local", "three", "--", "train.py"], "for example 3+1"),
        (["--local", "0+1", "--", "train.py"], "has no active node"),
        (["--local", "2", "--active", "1", "--", "train.py"], "--active is for SLURM"),
        (["--local"], "--local needs a value"),
        (["--nodes", "3"], "unknown option '--nodes'"),
        (["--local", "1", "--port", "99999", "--", "train.py"], "is not a port"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(shell: Shell, arguments: list[str], told: str) -> None:
    done = shell.run(LAUNCHER, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr


@pytest.mark.timeout(240)
def test_local_run_succeeds_on_all_nodes(shell: Shell) -> None:
    options = ("--local", "2+1", "--rdzv-conf", "lease_timeout=4,beat_interval=0.5", "--log-dir", "logs")
    done = shell.run(LAUNCHER, *options, "--", TRAIN, "--steps", "12", "--step-s", "0", timeout_s=200)
    logs = {path.name: path.read_text() for path in (shell.place / "logs").iterdir()}
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    assert sorted(logs) == ["node-0.log", "node-1.log", "node-2.log"]
    told = "".join(logs.values())
    assert told.count("step 12 loss") == 1
    assert "closed verdict=succeeded" in told
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


# --- SLURM, with stand-ins for its commands ---------------------------------------------------------


@pytest.fixture
def allocation(shell: Shell) -> dict[str, str]:
    """An allocation of four nodes, as a batch script sees it."""
    tools = shell.place / "tools"
    tools.mkdir()
    for name, text in (("scontrol", "printf 'n7\\nn8\\nn9\\nn10\\n'"), ("srun", 'printf "%s\\n" "$@"; exit 7')):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{shell.env['PATH']}",
        "SLURM_JOB_ID": "42",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NODELIST": "n[7-10]",
        "SLURM_RESTART_COUNT": "2",
    }


def test_slurm_runs_one_torchrun_per_node(shell: Shell, allocation: dict[str, str]) -> None:
    done = shell.run(LAUNCHER, "--active", "3", "--nproc-per-node", "8", "--", "train.py", "--x", **allocation)
    assert done.returncode == 7, "srun's own exit code is passed on"
    arguments = done.stdout.splitlines()
    at = arguments.index("torchrun")
    assert {"--no-kill", "--kill-on-bad-exit=0", "--ntasks-per-node=1", "--nodes=4"} <= set(arguments[:at])
    assert arguments[at:] == [
        "torchrun",
        "--nnodes=3:4",
        "--nproc-per-node=8",
        "--max-restarts=1000",
        "--rdzv-backend=ft",
        "--rdzv-endpoint=n7:29400",
        "--rdzv-id=42.2",
        "train.py",
        "--x",
    ]


def test_slurm_dry_run_prints_the_srun_command(shell: Shell, allocation: dict[str, str]) -> None:
    done = shell.run(LAUNCHER, "--dry-run", "--", "train.py", **allocation)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith("srun --no-kill --kill-on-bad-exit=0 ")
    assert "--nnodes=4:4" in done.stdout
    assert not (shell.place / "ft-logs").exists()


def test_slurm_refuses_more_active_nodes_than_there_are(shell: Shell, allocation: dict[str, str]) -> None:
    done = shell.run(LAUNCHER, "--active", "5", "--", "train.py", **allocation)
    assert done.returncode == 2
    assert "--active 5 is not between 1 and the allocation's 4 nodes" in done.stderr
