"""What the protocol relies on in a store, held against the simulated store and a real TCPStore alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.protocol.ops import Add, Append, Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set
from ft_rendezvous.store.raw_client import StoreSocket
from tests.contract.benches import LONG_S, Bench, SimBench, TcpBench, tcp_bench
from tests.sim.store import SimStore


@pytest.fixture(scope="module")
def tcp() -> Iterator[TcpBench]:
    with tcp_bench() as bench:
        yield bench


@pytest.fixture(scope="module")
def own(tcp: TcpBench) -> TcpBench:
    """The same server, by our own client."""
    return TcpBench(tcp.port, StoreSocket)


@pytest.fixture(params=["simulated", "tcp", "own"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "simulated":
        return SimBench()
    bench: TcpBench = request.getfixturevalue(request.param)
    return bench


_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    """A key that no other test uses: the real store is shared."""
    return f"ft/contract/{next(_numbers)}"


# --- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"text", id="text"),
        pytest.param(b"", id="empty"),
        pytest.param(bytes(range(256)), id="every byte"),
        pytest.param(b"\n{}\n", id="newlines"),
        pytest.param(b"\x00", id="nul"),
        pytest.param(b"x" * 2**20, id="a MiB"),
    ],
)
def test_a_value_comes_back_as_it_was_set(bench: Bench, key: str, value: bytes) -> None:
    bench.perform(Set(key, value))
    assert bytes(bench.perform(Get(key))) == value
    assert [bytes(got) for got in bench.perform(MultiGet([key, key]))] == [value, value]
    assert bench.perform(Check([key])) is True


def test_a_set_replaces(bench: Bench, key: str) -> None:
    bench.perform(Set(key, b"first and longer"))
    bench.perform(Set(key, b"second"))
    assert bytes(bench.perform(Get(key))) == b"second"


def test_a_multi_set_sets_all_in_order(bench: Bench, key: str) -> None:
    keys = [f"{key}/{number}" for number in range(100)]
    bench.perform(MultiSet(keys, [str(number).encode() for number in range(100)]))
    assert [bytes(got) for got in bench.perform(MultiGet(keys))] == [str(number).encode() for number in range(100)]


# --- append -----------------------------------------------------------------------------------------


def test_appends_add_up_in_order(bench: Bench, key: str) -> None:
    bench.perform(Append(key, b"one,"))
    bench.perform(Append(key, b""))
    bench.perform(Append(key, b"\x00two"))
    assert bytes(bench.perform(Get(key))) == b"one,\x00two"


def test_an_append_continues_a_set_value(bench: Bench, key: str) -> None:
    bench.perform(Set(key, b""))
    bench.perform(Append(key, b"x"))
    assert bytes(bench.perform(Get(key))) == b"x"


def test_an_append_brings_a_deleted_key_back_without_its_past(bench: Bench, key: str) -> None:
    bench.perform(Append(key, b"old"))
    bench.perform(Delete(key))
    bench.perform(Append(key, b"new"))
    assert bytes(bench.perform(Get(key))) == b"new"


def test_appends_of_many_clients_are_each_whole(bench: Bench, key: str) -> None:
    clients = [bench.second() for _ in range(4)]
    blobs = [bytes([65 + number]) * 1000 for number in range(4)]

    def write(number: int) -> None:
        for _ in range(20):
            clients[number].perform(Append(key, blobs[number]))
        clients[number].perform(Check([key]))  # Appends are not acknowledged; an answer to this one is.

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    log = bytes(bench.perform(Get(key)))
    parts = [log[start : start + 1000] for start in range(0, len(log), 1000)]
    assert sorted(parts) == sorted(blobs * 20)


# --- add --------------------------------------------------------------------------------------------


def test_add_counts_from_nothing(bench: Bench, key: str) -> None:
    assert [bench.perform(Add(key, amount)) for amount in (1, 5, 0, -2)] == [1, 6, 6, 4]
    assert int(bench.perform(Get(key))) == 4


def test_add_counts_on_from_a_set_number(bench: Bench, key: str) -> None:
    bench.perform(Set(key, b"0"))
    assert bench.perform(Add(key, 1)) == 1


def test_add_on_a_deleted_key_counts_from_nothing_again(bench: Bench, key: str) -> None:
    bench.perform(Add(key, 41))
    bench.perform(Delete(key))
    assert bench.perform(Add(key, 1)) == 1


def test_add_holds_a_number_of_many_digits(bench: Bench, key: str) -> None:
    amount = (1_000_000 << 32) + 1
    assert bench.perform(Add(key, amount)) == amount
    assert bench.perform(Add(key, 1)) == amount + 1
    assert int(bench.perform(Get(key))) == amount + 1


def test_adds_of_many_clients_give_every_number_once(bench: Bench, key: str) -> None:
    clients = [bench.second() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda index: clients[index % 4].perform(Add(key, 1)), range(100)))
    assert sorted(numbers) == list(range(1, 101))


# --- compare and set --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "expected", "after"),
    [
        pytest.param(None, b"", b"new", id="missing, as expected"),
        pytest.param(None, b"old", None, id="missing, another expectation"),
        pytest.param(b"old", b"old", b"new", id="as expected"),
        pytest.param(b"old", b"other", b"old", id="another value"),
        pytest.param(b"old", b"", b"old", id="a value, none expected"),
        pytest.param(b"", b"", b"new", id="empty, as expected"),
        pytest.param(b"", b"old", b"", id="empty, another expectation"),
        pytest.param(b"new", b"old", b"new", id="performed before"),
    ],
)
def test_a_compare_set_changes_only_what_was_expected_and_returns_what_is_there(
    bench: Bench, key: str, before: bytes | None, expected: bytes, after: bytes | None
) -> None:
    """For a missing key the expectation is returned, and the key stays missing."""
    if before is not None:
        bench.perform(Set(key, before))
    assert bytes(bench.perform(CompareSet(key, expected, b"new"))) == (expected if after is None else after)
    assert bench.perform(Check([key])) is (after is not None)
    if after is not None:
        assert bytes(bench.perform(Get(key))) == after


def test_a_compare_set_may_be_repeated(bench: Bench, key: str) -> None:
    """A node that lost the answer to its beat beats again, with the same counter."""
    for _ in range(2):
        assert bytes(bench.perform(CompareSet(key, b"", b"1"))) == b"1"
    for _ in range(3):
        assert bytes(bench.perform(CompareSet(key, b"1", b"4294967298"))) == b"4294967298"


def test_a_compare_set_on_a_deleted_key_does_not_bring_it_back(bench: Bench, key: str) -> None:
    """By this a node learns that its beat was taken away."""
    bench.perform(CompareSet(key, b"", b"1"))
    bench.perform(Delete(key))
    assert bytes(bench.perform(CompareSet(key, b"1", b"2"))) == b"1"
    assert bench.perform(Check([key])) is False


def test_a_compare_set_empties_a_log_only_as_it_was_read(bench: Bench, key: str) -> None:
    """By this the coordinator deletes what it has read, and never what it has not."""
    read = b"\n\xff\x00not text\n" * 2000
    bench.perform(Append(key, read))
    bench.perform(Append(key, b"new"))
    assert bytes(bench.perform(CompareSet(key, read, b""))) == read + b"new"
    assert bytes(bench.perform(CompareSet(key, read + b"new", b""))) == b""
    assert [bytes(got) for got in bench.perform(MultiGet([key, key]))] == [b"", b""], "it exists: no read of it waits"
    bench.perform(Append(key, b"next"))
    assert bytes(bench.perform(Get(key))) == b"next"


def test_of_many_clients_one_wins_a_compare_set(bench: Bench, key: str) -> None:
    clients = [bench.second() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda index: clients[index].perform(CompareSet(key, b"", str(index).encode())), range(4))
        )
    assert len({bytes(value) for value in found}) == 1


# --- check and delete -------------------------------------------------------------------------------


def test_check_says_whether_all_keys_exist(bench: Bench, key: str) -> None:
    bench.perform(Set(key, b""))
    assert bench.perform(Check([key])) is True
    assert bench.perform(Check([key, key + "/missing"])) is False
    assert bench.perform(Check([key + "/missing"])) is False


def test_a_deletion_says_whether_there_was_anything(bench: Bench, key: str) -> None:
    bench.perform(Set(key, b"x"))
    assert bench.perform(Delete(key)) is True
    assert bench.perform(Delete(key)) is False
    assert bench.perform(Check([key])) is False


# --- waiting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wake", "value"),
    [
        pytest.param(lambda key: Set(key, b"x"), b"x", id="set"),
        pytest.param(lambda key: Set(key, b""), b"", id="set to nothing"),
        pytest.param(lambda key: MultiSet([key + "/other", key], [b"o", b"x"]), b"x", id="multi_set"),
        pytest.param(lambda key: Append(key, b"x"), b"x", id="append"),
        pytest.param(lambda key: Add(key, 7), b"7", id="add"),
        pytest.param(lambda key: CompareSet(key, b"", b"x"), b"x", id="compare_set"),
    ],
)
def test_a_get_waits_for_its_key_and_is_woken_by_whatever_makes_it(
    bench: Bench, key: str, wake: object, value: bytes
) -> None:
    blocked = bench.start(Get(key))
    assert not blocked.is_done
    bench.perform(wake(key))  # type: ignore[operator]
    assert bytes(blocked.result()) == value


def test_a_get_on_a_deleted_key_waits(bench: Bench, key: str) -> None:
    """So a deleted event must never be asked for."""
    bench.perform(Set(key, b"old"))
    bench.perform(Delete(key))
    blocked = bench.start(Get(key))
    assert not blocked.is_done
    bench.perform(Set(key, b"new"))
    assert bytes(blocked.result()) == b"new"


def test_a_multi_get_waits_for_all_of_its_keys(bench: Bench, key: str) -> None:
    keys = [f"{key}/{number}" for number in range(3)]
    bench.perform(Set(keys[1], b"1"))
    blocked = bench.start(MultiGet(keys))
    bench.perform(Set(keys[0], b"0"))
    assert not blocked.is_done
    bench.perform(Set(keys[2], b"2"))
    assert [bytes(got) for got in blocked.result()] == [b"0", b"1", b"2"]


def test_one_set_wakes_everybody(bench: Bench, key: str) -> None:
    blocked = [bench.start(Get(key)) for _ in range(5)]
    bench.perform(Set(key, b"x"))
    assert [bytes(one.result()) for one in blocked] == [b"x"] * 5


# --- atomicity and order ----------------------------------------------------------------------------


def test_a_multi_get_never_sees_half_of_a_multi_set(bench: Bench, key: str) -> None:
    keys = [f"{key}/{number}" for number in range(20)]
    bench.perform(MultiSet(keys, [b"0"] * len(keys)))
    writer = bench.second()

    def write() -> None:
        for number in range(1, 100):
            writer.perform(MultiSet(keys, [str(number).encode()] * len(keys)))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            assert len({bytes(got) for got in bench.perform(MultiGet(keys))}) == 1
        writing.result(LONG_S)


def test_writes_of_one_client_are_seen_in_their_order(bench: Bench, key: str) -> None:
    """A record is there before the bell that was rung for it, although neither is acknowledged."""
    node = bench.second()
    for number in range(50):
        heard = bench.start(Get(f"{key}/bell{number}"))
        node.perform(Append(f"{key}/log", b"x"))
        node.perform(Set(f"{key}/bell{number}", b"1"))
        heard.result()
        assert len(bench.perform(Get(f"{key}/log"))) == number + 1


# --- one store is as good as the other --------------------------------------------------------------

blob_keys, count_keys = ("b0", "b1", "b2"), ("n0", "n1")
values = st.binary(max_size=20)
a_key = st.sampled_from([*blob_keys, *count_keys])
few_numbers = st.integers(-1, 2).map(lambda n: str(n).encode())
operations: st.SearchStrategy[Op] = st.one_of(
    st.builds(Set, st.sampled_from(blob_keys), values),
    st.builds(Append, st.sampled_from(blob_keys), values),
    st.builds(Add, st.sampled_from(count_keys), st.integers(-(2**40), 2**40)),
    st.builds(Set, st.sampled_from(count_keys), few_numbers),
    st.builds(CompareSet, st.sampled_from(count_keys), few_numbers | st.just(b""), few_numbers),
    st.builds(CompareSet, st.sampled_from(blob_keys), st.just(b"") | st.binary(max_size=1), st.just(b"")),
    st.builds(Delete, a_key),
    st.builds(Get, a_key),
    st.builds(Check, st.lists(a_key, min_size=1, max_size=3)),
    st.builds(MultiGet, st.lists(a_key, min_size=1, max_size=3)),
    st.lists(st.tuples(st.sampled_from(blob_keys), values), min_size=1, max_size=3).map(
        lambda pairs: MultiSet([key for key, _ in pairs], [value for _, value in pairs])
    ),
)


def under(prefix: str, op: Op) -> Op:
    """The same operation on keys of its own."""
    if isinstance(op, MultiSet):
        return MultiSet([prefix + key for key in op.keys], op.values)
    if isinstance(op, Check | MultiGet):
        return type(op)([prefix + key for key in op.keys])
    match op:
        case Get() | Delete():
            return type(op)(prefix + op.key)
        case Set() | Append():
            return type(op)(prefix + op.key, op.value)
        case Add():
            return Add(prefix + op.key, op.amount)
        case CompareSet():
            return CompareSet(prefix + op.key, op.expected, op.desired)


@settings(max_examples=60)
@given(ops=st.lists(operations, max_size=25))
def test_any_operations_have_the_same_replies_on_all_stores(tcp: TcpBench, own: TcpBench, ops: list[Op]) -> None:
    number = next(_numbers)
    simulated = SimStore()
    for op in ops:
        if not simulated.missing(op):
            expected = simulated.perform(op)
            assert tcp.perform(under(f"same/{number}/", op)) == expected
            assert own.perform(under(f"own/{number}/", op)) == expected
