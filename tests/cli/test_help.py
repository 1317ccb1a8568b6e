"""What `ftr` says of itself, and how it says no."""

from __future__ import annotations

import sys

import pytest
import typer

from ft_rendezvous import __version__
from ft_rendezvous.cli.main import app
from ft_rendezvous.config.settings import settings_table
from tests.cli.conftest import Shell


def test_help_lists_every_command(shell: Shell) -> None:
    done = shell.ftr("--help")
    assert done.returncode == 0
    for word in (
        "demo",
        "serve",
        "doctor",
        "settings",
        "status",
        "events",
        "report",
        "--version",
        "torchrun --nnodes=8:10",
    ):
        assert word in done.stdout


def test_no_command_shows_the_help(shell: Shell) -> None:
    done = shell.ftr()
    assert "Usage: ftr" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "demo",
            ["--nodes", "--spares", "--steps", "--lease", "--no-kill", "--dir", "--keep", "--timeout", "Exit code"],
        ),
        ("serve", ["--endpoint", "--rdzv-id", "--nnodes", "--rdzv-conf", "--log-level", "Exit code"]),
        (
            "explain",
            [
                "--nnodes",
                "--segment",
                "--unit-size",
                "--ranks",
                "--spread",
                "--policy",
                "--lose",
                "--save",
                "Exit code",
            ],
        ),
        (
            "doctor",
            ["--endpoint", "--nnodes", "--rdzv-conf", "--rdzv-id", "--timeout", "--json", "srun", "Exit code"],
        ),
        ("restart", ["HOST:PORT", "--group", "--reason", "Exit code"]),
        ("settings", ["--rdzv-conf"]),
        ("status", ["SOURCE", "--watch", "--json", "--nodes", "--run", "state_dir", "FT_STATE_TOKEN", "Exit code"]),
        ("events", ["SOURCE", "--follow", "--json", "--after", "--all", "--run", "FT_STATE_TOKEN", "Exit code"]),
        ("report", ["STATE_DIR", "--run", "--out", "ft-rendezvous[plots]", "Exit code"]),
    ],
)
def test_help_of_a_command_is_complete(shell: Shell, command: str, options: list[str]) -> None:
    done = shell.ftr(command, "--help")
    assert done.returncode == 0
    assert [option for option in options if option not in done.stdout] == []


def test_every_option_of_every_command_is_explained() -> None:
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - a group's, which mypy cannot know
    assert {"launch", "serve", "doctor"} <= commands.keys()
    unexplained = [
        (name, parameter.name)
        for name, command in commands.items()
        if not command.hidden
        for parameter in command.params
        if not parameter.help
    ]
    assert unexplained == []


def test_version(shell: Shell) -> None:
    assert shell.ftr("--version").stdout == f"ft-rendezvous {__version__}\n"


def test_settings_are_markdown_without_a_terminal(shell: Shell) -> None:
    assert shell.ftr("settings").stdout == settings_table() + "\n"


def test_starting_up_does_not_import_torch(shell: Shell) -> None:
    names = ("main", "demo.command", "docs", "launch", "serve", "doctor", "state_watch", "report")
    modules = ", ".join(f"ft_rendezvous.cli.{name}" for name in names)
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert shell.run(sys.executable, "-c", code).stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--spares", "0"], "--spares 1"),
        (["--steps", "5"], "--steps 15"),
        (["--dir", "."], "choose a new directory"),
    ],
)
def test_a_demo_that_cannot_work_is_refused_in_one_line(shell: Shell, arguments: list[str], advice: str) -> None:
    (shell.place / "something").touch()
    done = shell.ftr("demo", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert advice in done.stderr
