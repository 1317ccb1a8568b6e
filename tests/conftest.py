"""What all tests share: a resolver that gives up soon, Hypothesis without a stopwatch, and which tests are slow."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# TCPStore looks up every client's name on its only thread; a machine without a reverse entry for loopback would
# pause for 5 s each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# With a handler of its own, our logger is left as it is: pytest sees every line in the thread that logs it.
logging.getLogger("ft_rendezvous").addHandler(logging.NullHandler())

# The machine is shared, so how long an example takes says nothing; what an example finds must be found again.
settings.register_profile("ft", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ft")


SLURM_TESTS = "tests/slurm/"
RAY_TESTS = "tests/ray/"

SLOW_TESTS = (
    SLURM_TESTS,
    "tests/integration/",
    "tests/state/page/",
    # Real worlds of many nodes, in processes of their own.
    *(
        f"tests/benchmarks/test_{name}.py"
        for name in (
            "children",
            "contenders",
            "crowd",
            "groups",
            "load",
            "on_ray",
            "recovery",
            "steady",
            "updates",
            "warm",
        )
    ),
    "tests/benchmarks/test_scale.py::test_costs_are_measured_and_told",
    # Real torchrun processes, or processes that are killed and found again.
    *(f"tests/cli/test_{name}.py" for name in ("demo", "launcher", "serve", "status")),
    "tests/agent/",
    *(f"tests/warm/test_{name}.py" for name in ("extremes", "kills", "learn", "refusals", "same_as_cold")),
    "tests/worker/test_example.py",
    "tests/host/test_lighthouse.py",
    "tests/torchft/",
    RAY_TESTS,
    # Connections that fall silent: these tests wait for leases.
    "tests/contract/test_broken_connections.py",
    "tests/host/test_side_call.py::test_a_run_is_closed_with_its_verdict_although_the_file_cannot_be_written",
    # A process for each of many commands.
    "tests/cli/test_help.py",
    "tests/cli/test_explain.py",
    # Thousands of seeds, starts, cycles or worlds.
    "tests/core/test_placement.py::test_placement_is_what_trying_everything_finds_best",
    "tests/core/test_placement.py::test_a_broken_placement_is_caught",
    "tests/launch/ray/test_machine.py::test_a_broken_machine_is_caught",
    "tests/state/test_replay.py::test_a_replay_gives_the_same_state_bit_for_bit",
    "tests/state/test_report.py::test_there_is_a_picture_of_thousands_of_cycles",
    "tests/state/test_report.py::test_time_adds_up_to_what_the_fold_counts",
    "tests/state/test_wording.py::test_every_kind_of_event_has_its_sentence",
    "tests/state/test_log_reader.py::test_with_flipped_bytes_it_never_raises_and_never_guesses",
    "tests/state/web/test_following.py::test_what_is_too_old_begins_with_a_told_state_and_gives_the_same_run",
    "tests/updates/test_flows.py",
    "tests/updates/test_variants.py::test_the_model_sees_a_mistake",
    "tests/updates/test_exit.py",
    *(f"tests/sim/test_{name}.py" for name in ("parking", "sim")),
    "tests/contract/test_one_long_cycle.py",
    "tests/state/test_fold.py::test_a_thousand_cycles_of_ten_thousand_nodes_are_kept_in_bounded_memory",
    "tests/state/test_group_fold.py::test_simulated_runs_have_what_may_happen_to_groups",
    "tests/state/web/test_following.py::test_a_stream_may_be_cut_anywhere",
    # Networks and resolvers that are slow on purpose; some need root.
    *(f"tests/doctor/test_{name}.py" for name in ("alone", "networks", "together")),
    # Many clients, large runs, a busy host.
    "tests/state/test_seal_latency.py",
    *(f"tests/state/web/test_{name}.py" for name in ("hostile", "large")),
)
"""Tests that need root, SLURM, a browser or torchrun, or take long, by how their names begin."""

SMALL_TESTS = ("tests/test_architecture.py", "tests/test_docs.py", "tests/config/")
"""Files with hundreds of tests that take milliseconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(SLURM_TESTS) - item.nodeid.startswith(RAY_TESTS))
    for item in items:
        if item.nodeid.startswith(SLOW_TESTS):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give each test to the next free process, but all tests of the SLURM cluster to one process, at the end.

    There is one cluster, and its six nodes leave little of a small machine for other tests. The tests of the Ray
    cluster are in one process, too, and begin first, because they take long. Small tests are handed out together: to
    hand one out takes longer than to run it.
    """
    config.option.loadscopereorder = False

    class OneClusterScheduling(LoadScopeScheduling):
        # Not by the xdist_group mark, which xdist 3.8 loses with pytest 9.2.
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith((SLURM_TESTS, RAY_TESTS)):
                return SLURM_TESTS if nodeid.startswith(SLURM_TESTS) else RAY_TESTS
            return nodeid.partition("[")[0] if nodeid.startswith(SMALL_TESTS) else nodeid

    return OneClusterScheduling(config, log)


@pytest.fixture(autouse=True)
def default_drain_signal() -> None:
    """An agent that ends leaves SIGUSR1 ignored. Processes that later tests start would inherit that."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes of a test leave files in the temporary directory (each torchrun does): keep them in pytest's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where all tests must run (FT_NO_SKIPS, which .ci/run sets), a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FT_NO_SKIPS") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("a test was skipped, and FT_NO_SKIPS is set", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
