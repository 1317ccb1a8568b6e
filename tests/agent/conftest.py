"""What the tests of processes share: a stage that starts real ones and lets none survive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.process_stage import Stage
from tests.support.torchrun_cluster import MARKER


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage()
    monkeypatch.setenv(MARKER, stage.name)
    yield stage
    stage.close()
