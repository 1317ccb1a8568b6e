"""What all tests share: a resolver that gives up soon, and Hypothesis without a stopwatch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# TCPStore looks up every client's name on its only thread; a machine without a reverse entry for loopback would
# pause for 5 s each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# The machine is shared, so how long an example takes says nothing; what an example finds must be found again.
settings.register_profile("ft", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ft")


SLURM_TESTS = "tests/slurm/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(SLURM_TESTS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Tests go to whichever worker is free, but all that need the SLURM cluster to one, and last.

    There is one cluster, and its six nodes leave little of a small machine for anybody else.
    """
    config.option.loadscopereorder = False

    class OneClusterScheduling(LoadScopeScheduling):
        # Not by the xdist_group mark, which xdist 3.8 loses with pytest 9.2.
        def _split_scope(self, nodeid: str) -> str:
            return SLURM_TESTS if nodeid.startswith(SLURM_TESTS) else nodeid

    return OneClusterScheduling(config, log)


@pytest.fixture(autouse=True, scope="session")
def own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the processes of a test leave in the temporary directory (torchrun leaves one each) is kept in pytest's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything must run (FT_NO_SKIPS, set by .ci/run), a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FT_NO_SKIPS") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("a test was skipped, and FT_NO_SKIPS is set", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
