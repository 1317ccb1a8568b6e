"""Bytes in the store: what is written can be read, and what is bad spoils only itself."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core import recent
from ft_rendezvous.core.model import (
    STORE_FORMAT,
    AnyEvent,
    AnyRecord,
    Arrival,
    Called,
    Checkpoint,
    Closed,
    Failure,
    Finish,
    FirstCycle,
    Goodbye,
    GroupFailsAgain,
    GroupForms,
    Head,
    Master,
    NodeInfo,
    NodeLeft,
    NodesDrain,
    NodesLost,
    NoGroupTrains,
    Opened,
    Outcome,
    Request,
    RequestKind,
    RestartRequested,
    Sealed,
    Seat,
    UpdateNews,
    Verdict,
    VerdictKind,
    View,
    Withdrawal,
    WorkerRanks,
    WorkersFailed,
)
from ft_rendezvous.core.update_notes import StepTime, UpdateNote, UpdateOutcome, UpdateSums
from ft_rendezvous.errors import ConfigError, ProtocolBug
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.moves import LONG_LOG_BYTES, MOST_COMPARED_BYTES, LogReader
from ft_rendezvous.protocol.ops import Append, MultiGet, MultiSet, perform_move
from tests.core.build import arrival, incarnation
from tests.sim.store import SimStore

CYCLE = 3
ARRIVED = 1000

# --- anything that can honestly be said -------------------------------------------------------------

texts = st.text(max_size=40)
names = st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}")
small = st.integers(0, 10_000)
said = {"cycle_id": st.just(CYCLE), "incarnation": names, "v": st.just(STORE_FORMAT)}
nodes = st.builds(
    NodeInfo,
    addr=texts,
    pid=small,
    infra_rank=st.none() | small,
    domain_id=st.none() | texts,
    role=st.none() | texts,
    local_world_size=st.none() | small,
    born_us=small,
    boot_id=texts,
)
times = st.floats(0.0, 1e9)
update_notes = st.builds(
    UpdateNote,
    version=st.integers(-(1 << 63), (1 << 63) - 1),
    outcome=st.sampled_from(UpdateOutcome),
    attempts=small,
    parties=small,
    updated=small,
    failed_count=small,
    failed=st.lists(texts, max_size=3).map(tuple),
    steps=st.lists(st.builds(StepTime, texts, times), max_size=4).map(tuple),
    duration_s=times,
    lost_s=times,
    reason=texts,
)
records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(
        Arrival,
        **said,
        seq=st.integers(1, ARRIVED),
        node=nodes,
        bootstrap_port=small,
    ),
    st.builds(Withdrawal, **said, node=nodes, reason=texts),
    st.builds(
        Failure,
        **said,
        reason=texts,
        rank=st.none() | small,
        exit_code=st.none() | small,
        after_s=st.none() | st.floats(0.0, 1e6),
    ),
    st.builds(Request, **said, kind=st.sampled_from(RequestKind), target=texts, reason=texts),
    st.builds(Checkpoint, **said),
    st.builds(Finish, **said),
    st.builds(Goodbye, **said, outcome=st.sampled_from(Outcome), reason=texts),
    st.builds(
        UpdateNews,
        **said,
        number=st.integers(1, 1 << 62),
        worker_cycle_id=st.integers(1, CYCLE),
        merged=st.builds(UpdateSums, small, small, small, times, times),
        notes=st.lists(update_notes, max_size=2).map(tuple),
    ),
)
whys = st.one_of(
    st.just(FirstCycle()),
    st.builds(WorkersFailed, node=texts, rank=small, reason=texts),
    st.builds(
        NodesLost,
        nodes=st.lists(texts, max_size=3).map(tuple),
        ranks=st.lists(small, max_size=3).map(tuple),
        count=small,
    ),
    st.builds(RestartRequested, by=texts, reason=texts),
    st.builds(NodesDrain, nodes=st.lists(texts, max_size=3).map(tuple), count=small),
    st.builds(NodeLeft, node=texts, rank=small, outcome=st.sampled_from(Outcome), reason=texts),
    st.builds(NoGroupTrains, groups=st.lists(small, max_size=3).map(tuple), first=texts),
    st.builds(GroupFailsAgain, group=small, times=small),
    st.builds(GroupForms, nodes=small),
)
workers = st.builds(
    WorkerRanks, base_global_rank=small, global_world_size=small, base_role_rank=small, role_world_size=small
)
seats = st.builds(Seat, rank=st.none() | small, workers=st.none() | workers, group=small)
openings = st.builds(
    Opened,
    no=small,
    cycle_id=small,
    shards=small,
    ring_at=small,
    channels=small,
    why=whys,
    log_id=small,
    group=st.none() | small,
)
seals = st.builds(
    Sealed,
    no=small,
    cycle_id=small,
    world_size=small,
    counted=small,
    masters=st.dictionaries(st.integers(0, 99), st.builds(Master, texts, small), max_size=3),
    group=st.none() | small,
    group_count=small,
    seats=st.dictionaries(names, seats, max_size=5),
)
closings = st.builds(Closed, no=small, verdict=st.builds(Verdict, kind=st.sampled_from(VerdictKind), reason=texts))
calls = st.builds(Called, no=small, cycle_id=small, draining=st.lists(names, max_size=3).map(tuple), reason=texts)
views = st.builds(
    View,
    no=small,
    opened=openings,
    sealed=st.none() | seals,
    called=st.none() | calls,
    closed=st.none() | closings,
)


def decode(data: bytes, cycle_id: int = CYCLE) -> tuple[list[AnyRecord], list[codec.BadRecord]]:
    return codec.decode_records(data, cycle_id, ARRIVED)


# --- roundtrips -------------------------------------------------------------------------------------


@given(said=st.lists(records, max_size=8))
def test_records_come_back_as_they_were_written_and_in_order(said: list[AnyRecord]) -> None:
    assert decode(b"".join(map(codec.encode_record, said))) == (said, [])


@given(event=st.one_of(openings, seals, calls, closings))
def test_events_come_back(event: AnyEvent) -> None:
    assert codec.decode_event(codec.encode(event)) == event


@given(
    head=st.builds(
        Head,
        v=st.just(STORE_FORMAT),
        run_id=texts,
        epoch=names,
        settings=st.dictionaries(texts, texts, max_size=4),
        view=views,
    )
)
def test_heads_come_back(head: Head) -> None:
    assert codec.decode_head(codec.encode(head)) == head


@given(numbers=st.lists(st.integers(1, 500), unique=True, max_size=80), channels=st.integers(1, 8))
def test_every_seat_is_in_the_channel_its_node_listens_to(numbers: list[int], channels: int) -> None:
    dealt = codec.by_channel({incarnation(number): Seat(number) for number in numbers}, channels)
    assert len(dealt) == channels
    assert sum(map(len, dealt)) == len(numbers)
    for number in numbers:
        assert dealt[codec.spread(incarnation(number), channels)][incarnation(number)] == Seat(number)


@given(name=names, shards=st.integers(1, 64))
def test_a_node_keeps_to_one_shard_and_one_channel(name: str, shards: int) -> None:
    assert codec.spread(name, shards) == codec.spread(name, shards)
    assert 0 <= codec.spread(name, shards) < shards


@pytest.mark.parametrize("max_nodes", [1, 1_000, 10_000, 100_000])
def test_no_log_of_a_full_cycle_comes_near_the_8_mib_at_which_the_server_hangs_up(max_nodes: int) -> None:
    """Every node arrives, fails and says goodbye in the same cycle, each time in as many bytes as an arrival."""
    records_per_shard = 3 * max_nodes / codec.shard_count(max_nodes)
    assert records_per_shard * len(codec.encode_record(arrival(1))) < 8 * 2**20 / 2


def test_keys_of_epochs_and_cycles_never_meet() -> None:
    def all_keys(epoch: str, cycle_id: int) -> set[str]:
        keys = codec.Keys(epoch)
        return {
            keys.arrived(cycle_id),
            keys.withdrawn(cycle_id),
            keys.log(cycle_id, 0),
            keys.agent(cycle_id, "x"),
        }

    families = [all_keys(epoch, cycle_id) for epoch in ("a" * 16, "b" * 16) for cycle_id in (1, 11, 111)]
    assert len(set.union(*families)) == sum(map(len, families))


# --- bad records ------------------------------------------------------------------------------------


GOOD = arrival(7, cycle_id=CYCLE)
GOODBYE = Goodbye(cycle_id=CYCLE, incarnation=incarnation(8), outcome=Outcome.LEFT)


def altered(**changes: Any) -> bytes:
    """A good arrival, with other values at the named places; what has no place comes at the end."""
    named = dict(zip(("says", *Arrival.__struct_fields__), json.loads(codec.encode_record(GOOD)), strict=True))
    return json.dumps(list({**named, **changes}.values())).encode()


UPDATE = [1, "completed", 1, 1, 1, 0, [], [], 1.0, 0.0, ""]


def updates(**changes: Any) -> bytes:
    """A good record of updates, with other values at the named places."""
    news = UpdateNews(
        cycle_id=CYCLE, incarnation=incarnation(9), number=1, worker_cycle_id=CYCLE, merged=UpdateSums(), notes=()
    )
    named = dict(zip(("says", *UpdateNews.__struct_fields__), json.loads(codec.encode_record(news)), strict=True))
    return json.dumps(list({**named, **changes}.values())).encode()


def stacks(ranks: list[int], steps: list[int | None]) -> bytes:
    """An answer to an inquiry, about these ranks."""
    record = ["stacks", STORE_FORMAT, CYCLE, incarnation(9), 5, [[ranks, steps, []]], 12, [], []]
    return json.dumps(record).encode()


BAD = [
    pytest.param(b"garbage", "does not decode", id="garbage"),
    pytest.param(b"\x00\x01\x02", "does not decode", id="binary"),
    pytest.param(b"\xff\xfe{", "does not decode", id="not UTF-8"),
    pytest.param(b'["arrive",%d,"\xff"]' % STORE_FORMAT, "does not decode", id="not UTF-8 inside a string"),
    pytest.param(b'["goodbye",%d,"\\ud800"]' % STORE_FORMAT, "does not decode", id="half a surrogate pair"),
    pytest.param(b"null", "does not decode", id="null"),
    pytest.param(b"[]", "does not decode", id="a list"),
    pytest.param(b"{}", "does not decode", id="an empty object"),
    pytest.param(altered()[:-10], "does not decode", id="cut off"),
    pytest.param(altered(says="dance"), "does not decode", id="an unknown kind"),
    pytest.param(altered(extra=1), "does not decode", id="an unknown field"),
    pytest.param(altered(seq="7"), "does not decode", id="a field of another type"),
    pytest.param(altered(node=["x"]), "does not decode", id="a node without its pid"),
    pytest.param(b"x" * 5000, "5000 bytes, over the 4096", id="oversized"),
    pytest.param(altered(incarnation="x" * 5000), "over the 4096", id="oversized, and well formed"),
    pytest.param(altered(v=1), f"format 1, this run speaks {STORE_FORMAT}", id="another version"),
    pytest.param(
        altered(v=1, extra=1, says="dance"), f"format 1, this run speaks {STORE_FORMAT}", id="another version's fields"
    ),
    pytest.param(altered(cycle_id=CYCLE + 1), f"written for cycle {CYCLE + 1}", id="a later cycle"),
    pytest.param(altered(cycle_id=CYCLE - 1), f"written for cycle {CYCLE - 1}", id="an earlier cycle"),
    pytest.param(altered(incarnation="me"), "does not decode", id="not an incarnation"),
    pytest.param(altered(incarnation="../" * 5 + "x"), "16 hex digits", id="a path for an incarnation"),
    pytest.param(altered(incarnation="A" * 16), "16 hex digits", id="capitals"),
    pytest.param(altered(seq=ARRIVED + 1), "was never given", id="an arrival number from the future"),
    pytest.param(altered(seq=0), "does not decode", id="arrival number 0"),
    pytest.param(altered(seq=-1), "does not decode", id="a negative arrival number"),
    pytest.param(b'{"a":1}', "does not decode", id="an object"),
    pytest.param(altered(node=[*json.loads(altered())[5], 1]), "does not decode", id="an unknown field of the node"),
    pytest.param(b'{"a":' + b"[" * 4000, "does not decode", id="nested too deep"),
    pytest.param(b'["arrive",%d,' % STORE_FORMAT + b"[" * 4000, "does not decode", id="a field nested too deep"),
    pytest.param(b'["arrive",1,' + b"[" * 4000, "", id="a node nested too deep"),
    pytest.param(stacks([3, 4], [7]), "does not decode", id="a rank without its step"),
    pytest.param(stacks([3], [7, 7]), "does not decode", id="a step without its rank"),
    pytest.param(updates(worker_cycle_id=CYCLE + 1), "a cycle that has not been opened", id="updates of the future"),
    pytest.param(updates(worker_cycle_id=0), "does not decode", id="updates of cycle 0"),
    pytest.param(updates(number=0), "does not decode", id="updates without a number"),
    pytest.param(updates(merged=[1, 0, 0, 1e16, 0.0]), "does not decode", id="a sum that is too large"),
    pytest.param(updates(merged=[-1, 0, 0, 1.0, 0.0]), "does not decode", id="a negative count of updates"),
    pytest.param(updates(merged=[1, 0, 0, 1.0, 0.0, 1]), "does not decode", id="one sum too many"),
    pytest.param(updates(notes=[[1, "dreamt", 1, 1, 1, 0, [], [], 1.0, 0.0, ""]]), "does not decode", id="an outcome"),
    pytest.param(updates(notes=[UPDATE[:-1]]), "does not decode", id="an update without its reason"),
    pytest.param(updates(notes=[[*UPDATE, 1]]), "does not decode", id="an unknown field of an update"),
    pytest.param(updates(notes=[[*UPDATE[:-1], "x" * 201]]), "does not decode", id="a reason that is too long"),
    pytest.param(updates(notes=[[*UPDATE[:7], [["x", 1.0]] * 17, 1.0, 0.0, ""]]), "does not decode", id="many steps"),
]


def test_updates_of_an_earlier_cycle_and_of_groups_are_read() -> None:
    for worker_cycle_id in (1, CYCLE, CYCLE + 2):
        line = b"\n" + updates(worker_cycle_id=worker_cycle_id, notes=[UPDATE]) + b"\n"
        (news,), bad = codec.decode_records(line, CYCLE, ARRIVED, CYCLE + 2)
        assert isinstance(news, UpdateNews)
        assert (news.worker_cycle_id, news.sums, bad) == (worker_cycle_id, UpdateSums(1, 0, 0, 1.0, 0.0), [])


@pytest.mark.parametrize(("junk", "reason"), BAD)
def test_a_bad_record_is_refused_with_its_reason_and_spoils_only_itself(junk: bytes, reason: str) -> None:
    for framed in (b"\n" + junk + b"\n", junk):
        good, bad = decode(codec.encode_record(GOOD) + framed + codec.encode_record(GOODBYE))
        assert good == [GOOD, GOODBYE]
        assert len(bad) == 1
        assert reason in bad[0].reason
        assert len(bad[0].excerpt) <= 120


@given(
    said=st.lists(
        records.map(lambda record: (record, codec.encode_record(record)))
        | st.binary(max_size=200).map(lambda blob: (None, blob))
        | st.sampled_from(BAD).map(lambda case: (None, case.values[0])),
        max_size=12,
    )
)
def test_of_any_mix_of_good_records_and_junk_exactly_the_good_ones_come_back(
    said: list[tuple[AnyRecord | None, bytes]],
) -> None:
    good, _ = decode(b"".join(data for _, data in said))
    assert good == [record for record, _ in said if record is not None]


@given(
    log=st.lists(records.map(codec.encode_record) | st.sampled_from(BAD).map(lambda case: case.values[0]), max_size=8)
)
def test_a_log_without_a_bad_record_is_read_as_one_with_it_would_be(log: list[bytes]) -> None:
    """All at once where nothing is wrong, one by one else: nobody can tell by the result."""
    data = b"".join(log)
    assert decode(data) == codec._decode_one_by_one(data, range(CYCLE, CYCLE + 1), ARRIVED)


@given(sizes=st.lists(st.integers(0, 3 * codec.MAX_RECORD_BYTES), max_size=6))
def test_a_long_line_is_found_wherever_it_is(sizes: list[int]) -> None:
    data = b"".join(b"\n" + b"x" * size + b"\n" for size in sizes)
    assert codec._has_long_line(data) == any(size > codec.MAX_RECORD_BYTES for size in sizes)


@given(
    said=st.lists(
        records.map(lambda record: (record, codec.encode_record(record)))
        | st.binary(max_size=60).map(lambda blob: (None, blob)),
        max_size=12,
    ),
    data=st.data(),
)
def test_a_log_read_in_pieces_gives_every_record_once(
    said: list[tuple[AnyRecord | None, bytes]], data: st.DataObject
) -> None:
    """Appends are atomic, so a reader sees whole appends; how many at a time is chance. So is whether a node appends
    between the read and the moment at which the log is emptied."""
    reader, store, keys = LogReader(CYCLE, shards=1, long_log_bytes=100), SimStore(), codec.Keys("e")
    names = reader.key_names(keys)
    store.perform(MultiSet(names, [str(ARRIVED).encode(), b"0", b""]))
    got: list[AnyRecord] = []
    for _, blob in said:
        if data.draw(st.booleans()):
            got.extend(reader.take(store.perform(MultiGet(names))).records)
        store.perform(Append(names[2], blob))
        if data.draw(st.booleans()):
            perform_move(store, moves.empty_logs(keys, reader))
    got.extend(reader.take(store.perform(MultiGet(names))).records)
    assert got == [record for record, _ in said if record is not None]


def test_a_log_that_was_read_is_emptied_once_it_is_long() -> None:
    reader, store, keys = LogReader(CYCLE, shards=2), SimStore(), codec.Keys("e")
    names = reader.key_names(keys)
    line = codec.encode_record(arrival(1, cycle_id=CYCLE))
    short, long = line, line * (LONG_LOG_BYTES // len(line) + 1)
    store.perform(MultiSet(names, [b"1", b"0", short, long]))
    for _ in range(2):
        reader.take(store.perform(MultiGet(names)))
        perform_move(store, moves.empty_logs(keys, reader))
        assert store.perform(MultiGet(names)) == [b"1", b"0", short, b""]


def test_a_log_that_is_too_long_to_be_compared_is_left_alone() -> None:
    reader = LogReader(CYCLE, shards=1)
    reader.take([b"0", b"0", b"\n" * (MOST_COMPARED_BYTES + 1)])
    assert list(moves.empty_logs(codec.Keys("e"), reader)) == []


def test_a_reader_remembers_no_arrival_that_it_has_read() -> None:
    """An arrival that comes late, or twice, is told apart all the same; so is a withdrawal."""
    reader, log = LogReader(CYCLE, shards=1), b""

    def read(counted: int, *numbers: int) -> bool:
        nonlocal log
        log += b"".join(codec.encode_record(arrival(number, cycle_id=CYCLE)) for number in numbers)
        reader.take([str(counted).encode(), b"0", log])
        return reader.is_consistent

    assert read(3, 1, 2, 3)
    assert not read(5, 5)
    assert not read(6, 5, 6)
    assert reader.arrivals_missing == {4}
    assert read(6, 4)
    assert read(6, 4, 1)
    assert not reader.arrivals_missing


def test_a_reader_bounds_what_is_missing() -> None:
    """A count that was set to nonsense makes the coordinator believe the records, and costs no memory."""
    reader = LogReader(CYCLE, shards=1)
    with patch.object(recent, "MOST_REMEMBERED", 10):
        for counted in (10**15, 10**15 + 5):
            reader.take([str(counted).encode(), b"0", b""])
            assert (len(reader.arrivals_missing), max(reader.arrivals_missing)) == (10, counted)
            assert not reader.is_consistent


def test_a_withdrawal_that_is_written_twice_counts_once() -> None:
    reader, node = LogReader(CYCLE, shards=1), arrival(1).node
    line = codec.encode_record(Withdrawal(cycle_id=CYCLE, incarnation=incarnation(1), node=node, reason=""))
    reader.take([b"0", b"1", line * 2])
    assert reader.is_consistent


@pytest.mark.parametrize(
    ("counted", "written", "is_consistent"), [(0, 0, True), (2, 2, True), (3, 2, False), (1, 1, True)]
)
def test_a_reader_knows_whether_counts_and_records_agree(counted: int, written: int, is_consistent: bool) -> None:
    reader = LogReader(CYCLE, shards=2)
    log = b"".join(codec.encode_record(arrival(n, cycle_id=CYCLE)) for n in range(1, written + 1))
    reader.take([str(counted).encode(), b"0", b"", log])
    assert reader.is_consistent is is_consistent


def test_a_record_too_large_to_be_accepted_is_not_even_written() -> None:
    with pytest.raises(ConfigError, match=r"over the 4096 .* shorten domain, unit, role or reason"):
        codec.encode_record(Failure(cycle_id=1, incarnation=incarnation(1), reason="x" * 5000))


# --- what is not ours -------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"garbage", b"[]", b"{}", b'{"v":"one"}', b"\xff"])
def test_a_head_that_is_none_says_that_the_endpoint_is_wrong(data: bytes) -> None:
    with pytest.raises(ConfigError, match="not an ft rendezvous"):
        codec.decode_head(data)


def test_a_head_of_another_version_names_both_versions_whatever_its_fields() -> None:
    with pytest.raises(
        ConfigError, match=rf"format 7, this node {STORE_FORMAT}: install the same ft-rendezvous everywhere"
    ):
        codec.decode_head(b'{"v":7,"name":"x"}')


@pytest.mark.parametrize("decoder", [codec.decode_event], ids=lambda decoder: decoder.__name__)
@pytest.mark.parametrize("data", [b"garbage", b'{"type":"sealed"}', b'{"0":"\xff"}'])
def test_a_publication_that_does_not_decode_is_called_our_bug(decoder: Any, data: bytes) -> None:
    with pytest.raises(ProtocolBug, match="does not decode"):
        decoder(data)


def test_structs_of_the_wire_are_data_only() -> None:
    """Nothing that is decoded can name a type to be made, as a pickle can."""
    assert issubclass(Arrival, msgspec.Struct)
    good, bad = decode(b'\n{"__reduce__":["os.system","true"]}\n')
    assert (good, len(bad)) == ([], 1)
