"""Names are looked up in bounded time, and what we need of the system's resolver."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ft_rendezvous.store.names import Resolver, SilentResolver, UnknownName, addresses_of

LONG_S, SHORT_S = 60.0, 0.01


# --- the system's resolver --------------------------------------------------------------------------


def test_the_system_knows_the_addresses_of_localhost() -> None:
    found = addresses_of("localhost")
    assert {"127.0.0.1", "::1"} & {*found}
    assert len(found) == len({*found}), "each once"


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_the_system_takes_an_address_for_its_own_name(address: str) -> None:
    assert addresses_of(address) == [address]


@pytest.mark.parametrize(("name", "error"), [("no-such-host.invalid", OSError), ("a..b", ValueError)])
def test_the_system_raises_for_what_has_no_address(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        addresses_of(name)
    with pytest.raises(UnknownName):
        Resolver(timeout_s=LONG_S).look_up(name)


# --- our limits -------------------------------------------------------------------------------------


class SlowSystem:
    """A resolver that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        assert self.may_answer.wait(LONG_S)
        return ["10.0.0.1", "10.0.0.2"]


def test_a_silent_resolver_holds_no_caller_and_is_not_asked_again() -> None:
    system = SlowSystem()
    resolver = Resolver(system, SHORT_S)
    for _ in range(3):
        with pytest.raises(SilentResolver):
            resolver.look_up("train")
    assert system.asked == ["train"]
    system.may_answer.set()


def test_a_late_answer_is_for_those_who_ask_meanwhile() -> None:
    system = SlowSystem()
    resolver = Resolver(system, LONG_S)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(resolver.look_up, "train") for _ in range(4)]
        system.may_answer.set()
        assert {future.result() for future in asked} == {("10.0.0.1", "10.0.0.2")}


def test_nothing_is_remembered() -> None:
    answers = iter([["10.0.0.1"], ["10.0.0.2"]])
    resolver = Resolver(lambda _: next(answers), LONG_S)
    assert [resolver.look_up("train") for _ in range(2)] == [("10.0.0.1",), ("10.0.0.2",)]


def test_a_name_that_fails_is_asked_for_again() -> None:
    answers: list[list[str]] = [[], ["10.0.0.1"]]

    def ask(_: str) -> list[str]:
        found = answers.pop(0)
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return found

    resolver = Resolver(ask, LONG_S)
    with pytest.raises(UnknownName):
        resolver.look_up("train")
    assert resolver.look_up("train") == ("10.0.0.1",)


def test_a_name_without_an_address_is_unknown() -> None:
    with pytest.raises(UnknownName):
        Resolver(lambda _: [], LONG_S).look_up("train")


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "fe80::1%eth0"])
def test_no_resolver_is_asked_for_an_address(address: str) -> None:
    def refuse(_: str) -> list[str]:
        raise AssertionError("asked")

    assert Resolver(refuse).look_up(address) == (address,)


def test_a_machine_without_a_free_thread_may_find_one_for_the_next_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(lambda _: ["10.0.0.1"], LONG_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SilentResolver):
            resolver.look_up("train")
    assert resolver.look_up("train") == ("10.0.0.1",)
