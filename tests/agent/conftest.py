"""What the tests of processes share: a stage that starts real ones and lets none survive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.process_stage import ProcessStage
from tests.support.torchrun_cluster import MARKER


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessStage]:
    stage = ProcessStage()
    monkeypatch.setenv(MARKER, stage.name)
    yield stage
    stage.close()
