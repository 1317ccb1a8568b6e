"""Commands as pages show them, checked against the programs that they name. Only `--help` is ever run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer
from torch.distributed.run import get_args_parser

from ft_rendezvous.cli.main import app
from ft_rendezvous.config.schema import check_known, fields_by_key
from ft_rendezvous.config.settings import IGNORED_KEYS, OWNERS
from ft_rendezvous.errors import ConfigError
from tests.support.doc_pages import ROOT

SLURM_OPTIONS = {
    *("--nodes", "-N", "--ntasks-per-node", "--ntasks", "--no-kill", "--signal", "--kill-on-bad-exit", "--wait"),
    *("--requeue", "--open-mode", "--array", "--dependency", "--gres", "--gpus-per-node", "--cpus-per-task", "--time"),
    *("--batch", "--overlap", "--job-name", "--output", "--hint", "--nodelist"),
}
"""What pages may say to sbatch, srun and salloc. Where SLURM is installed, each must be in its own help, too."""

OTHER_PROGRAMS = {
    *("HEAD", "curl", "jq", "ssh", "pgrep", "kill", "scontrol", "scancel", "mountpoint", "df", "tail", "head", "echo"),
    *("[", "exit", "hostname", "git", "apt-get", "cat", "cd", "source", "export", "trap", "grep", "sudo", "FT_REWRITE"),
}
"""Programs of others whose options are not checked here."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_SEPARATORS = re.compile(r"[;&|()<>{}]+")


class WrongCommand(AssertionError):
    """A page shows a command that its program would refuse."""


def commands_in(text: str, *, is_console: bool = False) -> Iterator[list[str]]:
    """The simple commands of a shell script, or of a session with `$ ` prompts, as words. Comments are left out."""
    if is_console:
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("#SBATCH "):
            yield ["sbatch", *shlex.split(line.removeprefix("#SBATCH "), comments=True)]
            continue
        for inner in _SUBSTITUTION.findall(line):
            yield from _split(inner)
        yield from _split(_SUBSTITUTION.sub("SUBSTITUTED", line))


def _split(line: str) -> Iterator[list[str]]:
    """The simple commands of one line, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in ("<", ">", ">>"):
            next(lexer)
        elif _SEPARATORS.fullmatch(word):
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words


def check_command(words: Sequence[str], *, is_whole: bool = True) -> None:
    """Raise WrongCommand if the program is unknown, or does not know an option. Prose need not name all arguments."""
    words = list(words)
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if not words:
        return
    program, arguments = Path(words[0]).name, [word for word in words[1:] if word != "..."]
    if program in _CHECKS:
        _CHECKS[program](arguments, is_whole)
    elif program not in OTHER_PROGRAMS:
        raise WrongCommand(f"unknown program {program!r}: teach tests/support/doc_commands.py what it is")


def check_settings(conf: str) -> None:
    """`k=v,...` has only keys that there are."""
    known = {key for owner in OWNERS for key in fields_by_key(owner)} | IGNORED_KEYS | {"config"}
    given = dict(part.partition("=")[::2] for part in conf.split(",") if part not in ("", "..."))
    try:
        check_known(given, known)
    except ConfigError as error:
        raise WrongCommand(str(error)) from error


def _check_ftr(arguments: Sequence[str], is_whole: bool) -> None:
    if not arguments or arguments[0].startswith("-"):
        return
    command = getattr(typer.main.get_command(app), "commands").get(arguments[0])  # noqa: B009 - mypy cannot know it
    if command is None:
        raise WrongCommand(f"ftr has no command {arguments[0]!r}")
    rest, subcommands = list(arguments[1:]), getattr(command, "commands", {})
    if subcommands:  # `ftr ray` without a subcommand is `ftr ray run`.
        command = subcommands[rest.pop(0) if rest and rest[0] in subcommands else "run"]
    try:
        context = command.make_context(arguments[0], rest)
    except Exception as error:  # Typer has its own copy of click in some versions, and click's errors in others.
        if is_whole or type(error).__name__ != "MissingParameter":
            raise WrongCommand(f"ftr {shlex.join(arguments)}: {error}") from error
    else:
        check_settings(context.params.get("rdzv_conf") or "")


def _check_torchrun(arguments: Sequence[str], is_whole: bool) -> None:
    if not is_whole and arguments and arguments[-1].startswith("--") and "=" not in arguments[-1]:
        arguments = [*arguments, "1"]  # Prose that names an option, and not its value.
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = get_args_parser().parse_args([*arguments, "train.py"])
    except SystemExit as error:
        raise WrongCommand(f"torchrun {shlex.join(arguments)}: {complaint.getvalue()}") from error
    if options.training_script.startswith("-"):
        raise WrongCommand(f"torchrun takes {options.training_script} for the script")
    if options.rdzv_backend == "ft":
        check_settings(options.rdzv_conf)


def _check_slurm(program: str, arguments: Sequence[str], is_whole: bool) -> None:
    """Options come first; what follows them is a script of ours, or for srun another command."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, has_value, _ = rest.pop(0).partition("=")
        if option not in SLURM_OPTIONS or (shutil.which(program) and option not in _slurm_help_of(program)):
            raise WrongCommand(f"{program} has no option {option}")
        if option == "-N" and not has_value:
            rest.pop(0)
    if rest:
        check_command(rest, is_whole=is_whole)


def _check_python(arguments: Sequence[str], is_whole: bool) -> None:
    if arguments[:1] != ["-m"]:
        return
    module, options = arguments[1], [word.partition("=")[0] for word in arguments[2:] if word.startswith("--")]
    if module == "pytest":
        _check_pytest(arguments[2:], is_whole)
    elif module != "venv":
        known = _help_of(module, "report" if "report" in arguments[2:3] else "")
        _require(options, known, f"python -m {module}")


def _check_pytest(arguments: Sequence[str], _is_whole: bool) -> None:
    for word in arguments:
        if "/" in word and not word.startswith("-") and not (ROOT / word.partition("::")[0]).exists():
            raise WrongCommand(f"pytest: there is no {word}")


def _check_nox(arguments: Sequence[str], _is_whole: bool) -> None:
    sessions = re.findall(r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    given = [word for flag, word in itertools.pairwise(arguments) if flag in ("-s", "--session")]
    unknown = [word for word in given if word.partition("-")[0] not in sessions]
    if unknown:
        raise WrongCommand(f"nox has no session {unknown[0]}; it has {', '.join(sessions)}")


def _check_pip(arguments: Sequence[str], _is_whole: bool) -> None:
    for flag, word in itertools.pairwise(arguments):
        if flag in ("-r", "-c") and not (ROOT / word).exists():
            raise WrongCommand(f"pip: there is no {word}")
    extras = re.findall(r"\[([\w,]+)\]", " ".join(arguments))
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    _require([extra for group in extras for extra in group.split(",")], " ".join(known), "pip install")


def _check_launcher(arguments: Sequence[str], is_whole: bool) -> None:
    _check_ftr(["launch", *arguments], is_whole)


def _check_ray(arguments: Sequence[str], is_whole: bool) -> None:
    """What `ray job submit ... -- COMMAND` starts. Options of Ray itself are not checked."""
    if "--" in arguments:
        check_command(arguments[arguments.index("--") + 1 :], is_whole=is_whole)


def _check_nothing(_arguments: Sequence[str], _is_whole: bool) -> None:
    """A program that has nothing to be checked here: its options are not ours, and it runs in CI."""


def _require(options: Sequence[str], known: str, program: str) -> None:
    unknown = [option for option in options if option not in known.replace("[", " ").replace(",", " ").split()]
    if unknown:
        raise WrongCommand(f"{program} does not know {unknown[0]}")


@functools.cache
def _help_of(module: str, command: str) -> str:
    """What `python -m module [command] --help` prints. Not as a process: each would import torch again."""
    shown, before = io.StringIO(), sys.argv
    sys.argv = [module, *filter(None, [command]), "--help"]
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            importlib.import_module(f"{module}.__main__").main()
    except ModuleNotFoundError as error:
        raise WrongCommand(f"there is no module {module} to run") from error
    finally:
        sys.argv = before
    return re.sub(r"[=\[\],]", " ", shown.getvalue())


@functools.cache
def _slurm_help_of(program: str) -> frozenset[str]:
    """The options of a program of SLURM. It does not even print its help without a configuration."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write("ClusterName=none\nSlurmctldHost=localhost\n")
        conf.flush()
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "SLURM_CONF": conf.name}
        )
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", done.stdout))


_CHECKS: dict[str, Callable[[Sequence[str], bool], None]] = {
    "ftr": _check_ftr,
    "torchrun": _check_torchrun,
    "launcher.sh": _check_launcher,
    **{program: functools.partial(_check_slurm, program) for program in ("sbatch", "srun", "salloc")},
    "python": _check_python,
    "python3": _check_python,
    "pytest": _check_pytest,
    "nox": _check_nox,
    "ray": _check_ray,
    "pip": _check_pip,
    "ruff": _check_nothing,
    "mypy": _check_nothing,
    "pre-commit": _check_nothing,
    ".ci/run": _check_nothing,
    "run": _check_nothing,
}
