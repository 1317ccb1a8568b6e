"""One nursery for all tests of a process: its imports take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.warm.stage import Stage, open_stage


@pytest.fixture(scope="session")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("warm")) as stage:
        yield stage


@pytest.fixture
def light_stage(tmp_path: Path) -> Iterator[Stage]:
    """A nursery without torch, which is there at once and may be killed."""
    with open_stage(tmp_path, modules=()) as stage:
        yield stage
        for started in stage.started:
            if started.process.poll() is None:
                started.process.kill()
            started.process.wait()
        stage.assert_nothing_left()


@pytest.fixture
def stage(shared_stage: Stage, tmp_path: Path) -> Iterator[Stage]:
    """The shared nursery, with a folder of the test's own. No test leaves a process behind."""
    own = replace(shared_stage, folder=tmp_path, started=[])
    yield own
    for started in own.started:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()
    own.assert_nothing_left()
