"""Children answer, fail loudly, and are gone afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.children import ChildFailed, call, serving
from benchmarks.measure import DidNotFinish


def fail() -> None:
    raise ValueError("no such rank")


@contextmanager
def serve_pid() -> Iterator[int]:
    yield os.getpid()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_call_returns_its_result() -> None:
    assert call(60.0, divmod, 7, 2) == (3, 1)


def test_a_failure_carries_the_childs_traceback() -> None:
    with pytest.raises(ChildFailed, match="no such rank"):
        call(60.0, fail)


def test_a_late_call_is_given_up_at_once() -> None:
    call(60.0, divmod, 7, 2)  # The fork server is up: only the call itself is timed.
    started = time.monotonic()
    with pytest.raises(DidNotFinish):
        call(0.5, time.sleep, 60.0)
    assert time.monotonic() - started < 10.0


def test_a_server_ends_with_its_block() -> None:
    with serving(serve_pid) as pid:
        assert is_running(pid)
    assert not is_running(pid)
