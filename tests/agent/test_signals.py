"""Signal handlers are replaced for a while and put back, in the main thread only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ft_rendezvous.agent import signals
from ft_rendezvous.agent.signals import first_of_burst, first_signal_held, replace_handlers, signals_held


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The signals that reached the handler from before."""
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _frame: caught.append(signum))
    yield caught
    signal.signal(signal.SIGTERM, before)


def send_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_signals_are_ignored_while_they_are_held(caught: list[int]) -> None:
    with signals_held():
        send_sigterm()
    assert caught == []
    send_sigterm()
    assert caught == [signal.SIGTERM]


def test_the_first_signal_is_held_and_the_second_acts_as_before(caught: list[int]) -> None:
    with first_signal_held() as take_signal:
        assert take_signal() is None
        send_sigterm()
        assert caught == []
        assert take_signal() is signal.SIGTERM
        assert take_signal() is None
        send_sigterm()
        assert caught == [signal.SIGTERM]
    send_sigterm()
    assert len(caught) == 2


def test_an_error_puts_the_handlers_back(caught: list[int]) -> None:
    with pytest.raises(RuntimeError), signals_held():
        raise RuntimeError
    send_sigterm()
    assert caught == [signal.SIGTERM]


def test_of_several_signals_at_once_the_first_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[int] = []
    handle = first_of_burst(lambda signum, _frame: acted.append(signum))
    handle(signal.SIGTERM, None)
    handle(signal.SIGINT, None)
    assert acted == [signal.SIGTERM]
    monkeypatch.setattr(signals, "SIGNAL_BURST_S", 0.0)
    handle(signal.SIGINT, None)
    assert acted == [signal.SIGTERM, signal.SIGINT]


def test_another_thread_replaces_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    replaced: list[object] = []

    def replace() -> None:
        replaced.append(replace_handlers([signal.SIGTERM], lambda *_: None))

    thread = threading.Thread(target=replace)
    thread.start()
    thread.join()
    assert replaced == [{}]
    assert signal.getsignal(signal.SIGTERM) is before
