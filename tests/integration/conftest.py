"""Fixtures of the integration tests."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.torchrun_cluster import Cluster

_reports = pytest.StashKey[dict[str, pytest.TestReport]]()


BACKEND = os.environ.get("FT_TEST_BACKEND", "ft")
"""The backend the scenarios run against; c10d to compare."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash.setdefault(_reports, {})[report.when] = report
    return report


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of which nothing is left. A test that passed fails here if it left a process or hid an accident."""
    cluster = Cluster(tmp_path, BACKEND)
    yield cluster
    called = request.node.stash[_reports].get("call")
    has_passed = called is not None and called.passed
    left = cluster.close()
    print(cluster.tails())
    if has_passed:
        assert left == [], "processes are left"
        assert cluster.accidents() == []
