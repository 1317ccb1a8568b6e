"""What the tests of the worker's side share: a clean environment, and an inbox that is closed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.worker.inbox_rig import ENVIRON, InboxRig


@pytest.fixture(autouse=True)
def _no_worker_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may have started the tests themselves."""
    for name in os.environ:
        if name in ENVIRON or (name.startswith("FT_") and name != "FT_NO_SKIPS"):
            monkeypatch.delenv(name)


@pytest.fixture
def inbox() -> Iterator[InboxRig]:
    inbox = InboxRig()
    yield inbox
    inbox.close()


@pytest.fixture
def worker_inbox(inbox: InboxRig, monkeypatch: pytest.MonkeyPatch) -> InboxRig:
    """An inbox; this process is a worker of its agent."""
    for name, value in inbox.environ.items():
        monkeypatch.setenv(name, value)
    return inbox
