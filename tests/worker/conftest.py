"""Shared by the tests of the worker's side: a clean environment, and an inbox that is closed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.worker.inbox_rig import ENVIRON, Porch


@pytest.fixture(autouse=True)
def _no_worker_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests themselves may run under an agent."""
    for name in os.environ:
        if name in ENVIRON or (name.startswith("FT_") and name != "FT_NO_SKIPS"):
            monkeypatch.delenv(name)


@pytest.fixture
def porch() -> Iterator[Porch]:
    porch = Porch()
    yield porch
    porch.close()


@pytest.fixture
def worker_porch(porch: Porch, monkeypatch: pytest.MonkeyPatch) -> Porch:
    """An inbox. This process is a worker of its agent."""
    for name, value in porch.environ.items():
        monkeypatch.setenv(name, value)
    return porch
