"""Connections at their edges: what is not a store, a store that is gone, and the bytes we speak ourselves."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import DistStoreError, TCPStore

from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import Add, Append, Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set, Store
from ft_rendezvous.store import client, names, raw_client
from ft_rendezvous.store.client import NoAnswer, ServedStore, connect
from ft_rendezvous.store.net import listen
from ft_rendezvous.store.raw_client import Found, StoreSocket, probe
from tests.contract.benches import LONG_S
from tests.contract.strangers import (
    Answer,
    answer_late,
    echo,
    free_port,
    hang_up,
    listener,
    reset,
    say_nothing,
    speak_http,
    speak_ssh,
)
from tests.support.proxy import Proxy

SHORT_S = 0.3
"""Patience with something that is silent."""

# --- what is not a store ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(speak_http, Found.STRANGER, id="http"),
        pytest.param(speak_ssh, Found.STRANGER, id="ssh"),
        pytest.param(echo, Found.STRANGER, id="echo"),
        pytest.param(hang_up, Found.HUNG_UP, id="hangs up"),
        pytest.param(reset, Found.HUNG_UP, id="resets"),
        pytest.param(say_nothing, Found.SILENT, id="accepts and is silent"),
        pytest.param(answer_late, Found.SILENT, id="a store that is slow"),
        pytest.param(None, Found.SILENT, id="does not even accept"),
    ],
)
def test_a_probe_tells_what_is_there_without_being_caught_by_it(
    monkeypatch: pytest.MonkeyPatch, answer: Answer | None, found: Found
) -> None:
    monkeypatch.setattr(raw_client, "GREETING_TIMEOUT_S", SHORT_S if found is Found.SILENT else LONG_S)
    with listener(answer) as port:
        assert probe("127.0.0.1", port) is found
        with pytest.raises(StoreUnavailable, match=str(found)):
            StoreSocket("127.0.0.1", port)


def test_a_probe_finds_nothing_on_a_free_port() -> None:
    assert probe("127.0.0.1", free_port()) is Found.NOTHING


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_probe_finds_a_store_and_does_it_no_harm(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(raw_client, "GREETING_TIMEOUT_S", LONG_S)
    served = ServedStore(listen())
    for _ in range(20):
        assert probe(address, served.port) is Found.STORE
    assert served.perform(Add("still/there", 1)) == 1
    served.stop()


def test_a_name_that_does_not_resolve_is_told_apart_from_a_port_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(names, "RESOLVER", names.Resolver(fail))
    assert probe("no-such-host.invalid", 29400) is Found.UNKNOWN_HOST


def test_a_resolver_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()

    def hang(_: str) -> list[str]:
        ends.wait(LONG_S)
        return []

    monkeypatch.setattr(names, "RESOLVER", names.Resolver(hang, timeout_s=0.01))
    assert probe("head", 29400) is Found.SILENT_RESOLVER
    ends.set()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(speak_http, Found.NOTHING, id="a stranger and a free port"),
        pytest.param(hang_up, Found.HUNG_UP, id="one hangs up"),
    ],
)
def test_of_several_addresses_the_most_hopeful_is_reported(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, found: Found
) -> None:
    monkeypatch.setattr(names, "RESOLVER", names.Resolver(lambda _: ["127.0.0.2", "127.0.0.1"]))
    with listener(answer) as port:
        assert probe("head", port) is found


def test_the_store_is_found_at_any_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "RESOLVER", names.Resolver(lambda _: ["127.0.0.3", "127.0.0.2", "127.0.0.1"]))
    served = ServedStore(listen())
    with Proxy(served.port) as proxy, listener(hang_up, "127.0.0.2", proxy.port):
        store = StoreSocket("head", proxy.port)
        assert store.address == "127.0.0.1"
        assert store.perform(Add("count", 1)) == 1
        store.close()
    served.stop()


# --- a store that is gone ---------------------------------------------------------------------------

OPERATIONS: list[Op] = [
    Get("there"),
    MultiGet(["there"]),
    Check(["there"]),
    Set("x", b"1"),
    MultiSet(["x", "y"], [b"1", b"2"]),
    Append("x", b"1"),
    Add("n", 1),
    CompareSet("there", b"1", b"1"),
    Delete("x"),
]


@pytest.mark.parametrize("connect_with", [connect, StoreSocket])
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: type(op).__name__)
def test_a_dead_server_is_called_so_whatever_was_asked_of_it(op: Op, connect_with: Callable[[str, int], Store]) -> None:
    """`set` and `append` are not acknowledged, so the first after the death may not notice; the next ones do."""
    served = ServedStore(listen())
    client = connect_with("127.0.0.1", served.port)
    client.perform(Set("there", b"1"))
    client.perform(op)
    client.perform(Check(["there"]))
    served.stop()

    def ask_until_noticed() -> None:
        for _ in range(1000):
            client.perform(op)

    with pytest.raises(StoreUnavailable, match=f"store 127.0.0.1:{served.port}: the connection is lost"):
        ask_until_noticed()


def wait_in_thread(ear: StoreSocket, key: str) -> tuple[threading.Thread, list[object]]:
    """A thread that waits for a key, and what came of it."""
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(ear.perform(Get(key)))
        except StoreUnavailable as error:
            outcome.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, outcome


def test_whoever_waits_on_a_server_that_dies_is_told_at_once() -> None:
    served = ServedStore(listen())
    thread, outcome = wait_in_thread(StoreSocket("127.0.0.1", served.port), "never")
    served.stop()
    thread.join(LONG_S)
    assert [type(one) for one in outcome] == [StoreUnavailable]


def test_whoever_waits_can_be_woken_by_closing_its_connection() -> None:
    """So no thread sits in C++ when the process ends."""
    served = ServedStore(listen())
    ear = StoreSocket("127.0.0.1", served.port)
    thread, outcome = wait_in_thread(ear, "never")
    ear.close()
    ear.close()
    thread.join(LONG_S)
    assert [type(one) for one in outcome] == [StoreUnavailable]
    served.stop()


def test_a_stopped_server_says_so() -> None:
    served = ServedStore(listen())
    served.stop()
    with pytest.raises(StoreUnavailable, match="it was stopped"):
        served.perform(Check(["x"]))


READS = [pytest.param(Get("a"), b"1", id="get"), pytest.param(MultiGet(["a", "b"]), [b"1", b"2"], id="multi-get")]


@pytest.mark.parametrize(("op", "values"), READS)
def test_a_server_that_stood_still_for_longer_than_a_call_may_take_is_asked_again(
    op: Get | MultiGet, values: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks up the name of each new client, and a name server may take long. The run must not end for that."""
    served = ServedStore(listen())
    served.perform(MultiSet(["a", "b"], [b"1", b"2"]))
    read, stalls = client._PERFORM[type(op)], [True, True, False]

    def stall(store: TCPStore, asked: Op) -> object:
        if stalls.pop(0):
            raise DistStoreError("wait timeout after 30000ms")  # The next test shows that torch raises this.
        return read(store, asked)

    monkeypatch.setitem(client._PERFORM, type(op), stall)
    assert served.perform(op) == values
    served.stop()


@pytest.mark.parametrize("op", [Get("missing"), MultiGet(["there", "missing"])])
def test_a_missing_key_ends_a_read_in_time_and_the_connection_can_still_be_used(
    op: Get | MultiGet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT", timedelta(seconds=SHORT_S))
    served = ServedStore(listen())
    served.perform(Set("there", b"1"))
    with pytest.raises(NoAnswer):
        served.perform(op)
    assert served.perform(Get("there")) == b"1"
    served.stop()


def test_a_port_is_held_from_the_first_moment_and_taken_only_once() -> None:
    first = listen()
    port = first.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        listen(port)
    served = ServedStore(first)
    assert served.port == port
    with pytest.raises(OSError, match="in use"):
        listen(port)
    served.stop()
    listen(port).close()


# --- the bytes we speak ourselves -------------------------------------------------------------------


class Wiretap:
    """A proxy before a store that writes down what clients send."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.heard: list[bytearray] = []
        """What each connection has sent, in order of connecting."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            store = socket.create_connection(("127.0.0.1", self._target))
            heard = bytearray()
            self.heard.append(heard)
            threading.Thread(target=self._pump, args=(client, store, heard), daemon=True).start()
            threading.Thread(target=self._pump, args=(store, client, bytearray()), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, heard: bytearray) -> None:
        try:
            while data := source.recv(1 << 16):
                heard.extend(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()


@contextmanager
def tapped_store() -> Iterator[tuple[ServedStore, Wiretap]]:
    served = ServedStore(listen())
    tap = Wiretap(served.port)
    try:
        yield served, tap
    finally:
        tap.close()
        served.stop()


def without_nonce(said: bytes) -> bytes:
    """A greeting is a validation of five bytes, then a ping and four bytes of the client's own."""
    return said[:6] + b"...." + said[10:]


@pytest.mark.parametrize("key", ["x", "ft/0123456789abcdef/0/event/17", "ключ"])
@pytest.mark.parametrize("value", [b"", b"value", bytes(range(256)) * 5000])
def test_a_store_socket_says_byte_for_byte_what_torchs_own_client_says(key: str, value: bytes) -> None:
    with tapped_store() as (served, tap):
        served.perform(Set(key, value))
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        assert bytes(torchs.get(key)) == value
        ours = StoreSocket("127.0.0.1", tap.port)
        assert ours.perform(Get(key)) == value
        first, second = (bytes(heard) for heard in tap.heard)
        assert without_nonce(second) == without_nonce(first)


@pytest.mark.parametrize("keys", [["ft/head"], ["ft/head", "ключ"], ["ft/head", "ключ", "missing"]])
def test_a_store_socket_looks_for_keys_as_torchs_own_client_does(keys: list[str]) -> None:
    with tapped_store() as (served, tap):
        served.perform(MultiSet(["ft/head", "ключ"], [b"", b"x"]))
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        ours = StoreSocket("127.0.0.1", tap.port)
        assert ours.perform(Check(keys)) is torchs.check(keys) is ("missing" not in keys)
        first, second = (bytes(heard) for heard in tap.heard)
        assert without_nonce(second) == without_nonce(first)


def test_a_store_socket_deletes_as_torchs_own_client_does() -> None:
    with tapped_store() as (served, tap):
        served.perform(MultiSet(["a", "ключ"], [b"", b"x"]))
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        ours = StoreSocket("127.0.0.1", tap.port)
        for key, is_there in (("a", True), ("missing", False)):
            assert torchs.delete_key(key) is is_there
            served.perform(Set("a", b""))
            assert ours.perform(Delete(key)) is is_there
        first, second = (bytes(heard) for heard in tap.heard)
        assert without_nonce(second) == without_nonce(first)


def test_a_store_socket_counts_and_sets_as_torchs_own_client_does() -> None:
    with tapped_store() as (served, tap):
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        ours = StoreSocket("127.0.0.1", tap.port)
        for store, total in ((torchs, 5), (ours, 10)):
            assert (store.add("ключ", 5) if store is torchs else ours.perform(Add("ключ", 5))) == total
        for value in (b"", b"value", bytes(range(256)) * 5000):
            torchs.set("a", value)  # type: ignore[arg-type]
            ours.perform(Set("b", value))
            assert ours.perform(Get("b")) == torchs.get("a") == served.perform(Get("b")) == value
        first, second = (bytes(heard) for heard in tap.heard)
        # Under keys that differ in one letter.
        assert without_nonce(second).replace(b"/b", b"/a") == without_nonce(first)


LARGE = bytes(range(256)) * 5000
SPOKEN: list[tuple[Op, Callable[[Any], object]]] = [
    (CompareSet("there", b"x", b"yy"), lambda torchs: torchs.compare_set("there", "x", "yy")),
    (CompareSet("there", b"no", b"yy"), lambda torchs: torchs.compare_set("there", "no", "yy")),
    (CompareSet("ключ", b"", b"1"), lambda torchs: torchs.compare_set("ключ", "", "1")),
    (CompareSet("missing", b"1", b"2"), lambda torchs: torchs.compare_set("missing", "1", "2")),
    (Append("ключ", b""), lambda torchs: torchs.append("ключ", b"")),
    (Append("log", LARGE), lambda torchs: torchs.append("log", LARGE)),
    (MultiGet(["there"]), lambda torchs: torchs.multi_get(["there"])),
    (MultiGet(["there", "large", "пусто"]), lambda torchs: torchs.multi_get(["there", "large", "пусто"])),
    (MultiSet(["a"], [b"1"]), lambda torchs: torchs.multi_set(["a"], [b"1"])),
    (MultiSet(["a", "ключ"], [b"", LARGE]), lambda torchs: torchs.multi_set(["a", "ключ"], [b"", LARGE])),
]


@pytest.mark.parametrize(("op", "say"), SPOKEN, ids=lambda value: type(value).__name__ if not callable(value) else "")
def test_a_store_socket_performs_as_torchs_own_client_does(op: Op, say: Callable[[Any], object]) -> None:
    """Each on a store of its own: the same bytes have the same effect and the same answer."""
    said: list[bytes] = []
    answers: list[object] = []
    for is_ours in (False, True):
        with tapped_store() as (served, tap):
            served.perform(MultiSet(["there", "large", "пусто"], [b"x", LARGE, b""]))
            if is_ours:
                ours = StoreSocket("127.0.0.1", tap.port)
                answers.append(ours.perform(op))
                assert ours.perform(Check(["there"]))  # An answer to this one: all before it was performed.
            else:
                torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
                answers.append(say(torchs))
                assert torchs.check(["there"])
            said.append(without_nonce(bytes(tap.heard[0])))
    assert said[0] == said[1]
    assert answers[0] == answers[1]


def test_a_store_socket_waits_as_torchs_own_client_does() -> None:
    with tapped_store() as (served, tap):
        served.perform(Set("ключ", b"x"))
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        torchs.wait(["ключ"])
        StoreSocket("127.0.0.1", tap.port).wait_for("ключ")
        first, second = (bytes(heard) for heard in tap.heard)
        assert without_nonce(second) == without_nonce(first)


def test_an_operation_does_not_wait_for_the_acknowledgement_of_a_write_before_it() -> None:
    """A record, the bell and a beat follow each other. On a socket as it comes, that takes 40 ms on Linux."""
    served = ServedStore(listen())
    ours, took_s = StoreSocket("127.0.0.1", served.port), list[float]()
    for _ in range(10):
        threading.Event().wait(0.05)  # The server's side acknowledges late only on a connection that was idle.
        began = time.monotonic()
        ours.perform(Append("log", b"x"))
        ours.perform(Set("bell", b"1"))
        ours.perform(Check(["bell"]))
        took_s.append(time.monotonic() - began)
    served.stop()
    assert min(took_s) < 0.03


def test_a_key_deleted_while_it_is_read_reads_as_nothing_and_not_for_ever() -> None:
    """A wait and a read are two steps of the server; the participant takes emptiness for a lost event."""
    with tapped_store() as (served, tap):
        served.perform(Set("event", b"x"))
        ours = StoreSocket("127.0.0.1", tap.port)
        send_really = ours._socket.sendall

        class Deleting:
            """Deletes the key between the two."""

            def __getattr__(self, name: str) -> object:
                return getattr(really, name)

            def sendall(self, data: bytes) -> None:
                if data.startswith(raw_client._GET):
                    served.perform(Delete("event"))
                send_really(data)

        really = ours._socket
        ours._socket = Deleting()  # type: ignore[assignment]
        assert ours.perform(Get("event")) == b""


# --- what the protocol must respect -----------------------------------------------------------------


def test_a_multi_set_in_two_pieces_is_performed_in_part_and_then_again() -> None:
    """Why what others change is never set together with what tells them of it."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    multi_set = b"\x0b" + struct.pack("<Q", 3)
    served = ServedStore(listen())
    client, sock = connect("127.0.0.1", served.port), raw_client._greet_at("127.0.0.1", served.port, None)
    try:
        sock.sendall(multi_set + text(b"/count") + text(b"0") + text(b"/event") + text(b"opened"))
        assert client.perform(Get("event")) == b"opened"
        assert not client.perform(Check(["head"]))
        assert client.perform(Add("count", 1)) == 1
        sock.sendall(text(b"/head") + text(b"h"))
        assert client.perform(Get("head")) == b"h"
        assert client.perform(Get("count")) == b"0", "the count is lost"
    finally:
        sock.close()
        served.stop()
