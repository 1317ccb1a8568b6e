"""A signal is forwarded only to processes that catch it: the others would die of it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from ft_rendezvous.agent.processes import catches, forward
from tests.agent.process_stage import ProcessStage

CATCHER = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(0.05)  # A signal that comes just before a sleep is served after it.
"""


def test_a_signal_reaches_only_processes_that_catch_it(stage: ProcessStage) -> None:
    catcher = stage.start((sys.executable, "-S", "-c", CATCHER))
    assert catcher.stdout is not None
    catcher.stdout.readline()
    bystander = stage.start(("sleep", "600"))
    gone = stage.start(("true",))
    gone.wait()
    assert forward(signal.SIGUSR1, (gone.pid, bystander.pid, catcher.pid)) == [catcher.pid]
    assert catcher.wait() == 7
    bystander.terminate()
    # Of two pending signals the lower number is served first, so a SIGUSR1 would show.
    assert bystander.wait() == -signal.SIGTERM


def test_to_ignore_is_not_to_catch(stage: ProcessStage) -> None:
    catcher = stage.start((sys.executable, "-S", "-c", CATCHER))
    assert catcher.stdout is not None
    catcher.stdout.readline()
    assert catches(catcher.pid, signal.SIGUSR1)
    assert not catches(catcher.pid, signal.SIGHUP)
    assert not catches(catcher.pid, signal.SIGUSR2)


def test_the_last_signal_has_its_place_in_the_mask() -> None:
    before = signal.signal(signal.SIGRTMAX, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGRTMAX)
    finally:
        signal.signal(signal.SIGRTMAX, before)
    assert not catches(os.getpid(), signal.SIGRTMAX)


def test_a_process_that_ends_before_the_signal_comes_is_not_reached(
    stage: ProcessStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = stage.start(("true",))
    gone.wait()
    monkeypatch.setattr("ft_rendezvous.agent.processes.catches", lambda *_: True)
    assert forward(signal.SIGUSR1, [gone.pid]) == []
