"""The load generator says what the real node says, in the bytes that torch's client says it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from torch.distributed import TCPStore

from benchmarks import form, load, ours
from benchmarks.baselines import raw
from benchmarks.children import prepare_environment, serving
from benchmarks.crowd import Seat
from benchmarks.load import speech
from benchmarks.load.crowd import connect, form_world
from benchmarks.load.nodes import make_participant, take_part
from benchmarks.measure import WrongResult
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Add, Append, CompareSet, Delete, Get, Move, MultiSet, Op, Set
from tests.contract.counting import counted
from tests.contract.live import LiveRun, live_run
from tests.contract.test_tcp_store import tapped_store, without_nonce

COUNT = 50
PORT_DIGITS = 5


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


# --- worlds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serve", "form_with"),
    [(partial(serving, ours.serve, COUNT), load.form_ours), (partial(serving, raw.serve), load.form_raw)],
    ids=["ours", "raw"],
)
def test_the_generator_forms_a_world(serve: Any, form_with: form.Form) -> None:
    formed = form.form_one(COUNT, serve, form_with)
    assert formed.seconds > 0
    assert formed.busy_s > 0


@contextmanager
def serve_miscounted() -> Iterator[int]:
    """A store in which somebody has arrived already."""
    with raw.serve() as port:
        TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False).add(Keys(EPOCH).arrived(CYCLE_ID), 1)
        yield port


def test_a_world_that_is_none_is_refused() -> None:
    with pytest.raises(WrongResult, match="ranks are not exactly"):
        form.form_one(COUNT, partial(serving, serve_miscounted), load.form_raw)


def test_a_run_that_is_closed_instead_is_told() -> None:
    """One node fewer than the run needs comes, and nobody gets a seat."""
    with (
        live_run(min_nodes=3, max_nodes=3, join_s=0.5) as run,
        pytest.raises(RuntimeError, match="the run is over for this node"),
    ):
        generate(run, 2)


# --- operations -------------------------------------------------------------------------------------


class Trace:
    """What each node asked of its store, in order, with what names it and the store left out."""

    def __init__(self) -> None:
        self._ops: dict[str, list[Op]] = defaultdict(list)
        self._numbers: dict[str, int] = {}

    def count(self, node: str, op: Op, reply: Any) -> None:
        self._ops[node].append(op)
        if isinstance(op, Add) and op.key.endswith("/arrived"):
            self._numbers[node] = reply

    def by_number(self) -> dict[int, list[str]]:
        """From its first beat on, every node's operations by its number among the arrivals."""
        return {number: self._told(self._ops[node]) for node, number in self._numbers.items()}

    @staticmethod
    def _told(ops: list[Op]) -> list[str]:
        beat = next(op for op in ops if isinstance(op, CompareSet))
        begun = ops[ops.index(beat) :]
        return [_tell(op, beat.key) for op in begun if op is beat or getattr(op, "key", "") != beat.key]


def _tell(op: Op, beat_key: str) -> str:
    if isinstance(op, MultiSet):
        return "MultiSet"
    assert isinstance(op, Add | Append | CompareSet | Get | Set)
    _, epoch, _, _, incarnation = beat_key.split("/")
    key = op.key.replace(epoch, "EPOCH").replace(incarnation, "INCARNATION")
    if isinstance(op, Append | Get) and ("/log/" in key or "/event/" in key):
        key = key.rpartition("/")[0]  # Shard and channel follow from the incarnation.
    amount = f" {op.amount}" if isinstance(op, Add) else ""
    size = f" {len(op.value)} bytes" if isinstance(op, Append | Set) else ""
    return f"{type(op).__name__} {key}{amount}{size}"


def recorded(move: Move[Seat], node: str, trace: Trace) -> Move[Seat]:
    reply: Any = None
    while True:
        try:
            op = move.send(reply)
        except StopIteration as stop:
            seat: Seat = stop.value
            return seat
        reply = yield op
        trace.count(node, op, reply)


def generate(run: LiveRun, count: int, trace: Trace | None = None) -> None:
    """Let the generator's nodes take part in a live run."""
    head = codec.decode_head(run.stranger().perform(Get(codec.HEAD_KEY)))
    moves = [take_part(make_participant(run.settings, head, arrival)) for arrival in make_arrivals(count)]
    form_world(run.port, [recorded(move, str(index), trace or Trace()) for index, move in enumerate(moves)])


def trace_links(monkeypatch: pytest.MonkeyPatch, count: int) -> dict[int, list[str]]:
    """What real links ask of their stores until each node has its seat."""
    trace = Trace()
    with live_run(min_nodes=count, max_nodes=count) as run:
        nodes = []
        for index, arrival in enumerate(make_arrivals(count)):
            with counted(monkeypatch, trace, str(index)):  # type: ignore[arg-type]
                known = {name: getattr(arrival.node, name) for name in arrival.node.__struct_fields__}
                nodes.append(run.node(index, **known))
        run.seal(*nodes)
        ports = [node.session.bootstrap.hold(1, node.participant.incarnation) for node in nodes]
        assert {len(str(port)) for port in ports} == {PORT_DIGITS}, "records would differ in length"
        return trace.by_number()


def trace_generator(count: int) -> dict[int, list[str]]:
    trace = Trace()
    with live_run(min_nodes=count, max_nodes=count) as run:
        generate(run, count, trace)
    return trace.by_number()


def trace_raw(count: int) -> dict[int, list[str]]:
    trace, event = Trace(), raw.make_event(count)
    with raw.serve() as port:
        moves = [raw.take_part(count, arrival, event) for arrival in make_arrivals(count)]
        form_world(port, [recorded(move, str(index), trace) for index, move in enumerate(moves)])
    return trace.by_number()


def test_a_generated_node_performs_what_a_node_with_a_real_link_performs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not the last performs five operations, the last one rings too."""
    real = trace_links(monkeypatch, 3)
    assert trace_generator(3) == real
    assert [len(real[number]) for number in (1, 2, 3)] == [5, 5, 6]


def test_raw_operations_are_those_of_a_node_of_ours() -> None:
    """In kind, order and number, and in the size of what is written; the last one publishes instead of ringing."""
    bare, generated = trace_raw(3), trace_generator(3)
    generated[3] = [told for told in generated[3] if not told.startswith("Set")]
    bare[3].remove("MultiSet")
    assert bare == generated


def test_raw_values_are_as_large_as_ours() -> None:
    with live_run(min_nodes=COUNT, max_nodes=COUNT) as run:
        generate(run, COUNT)
        store = run.stranger()
        head, event = store.perform(Get(codec.HEAD_KEY)), store.perform(Get(run.keys.event(2, 0)))
    assert len(raw.HEAD) == pytest.approx(len(head), rel=0.2)
    assert len(raw.make_event(COUNT)) == pytest.approx(len(event), rel=0.2)


# --- bytes ------------------------------------------------------------------------------------------

SAID: list[tuple[Op, Callable[[Any], object]]] = [
    (Get("there"), lambda store: store.get("there")),
    (Add("count", 3), lambda store: store.add("count", 3)),
    (Add("count", 1 << 40), lambda store: store.add("count", 1 << 40)),
    (CompareSet("beat", b"", b"1"), lambda store: store.compare_set("beat", "", "1")),
    (CompareSet("there", b"x", b"yy"), lambda store: store.compare_set("there", "x", "yy")),
    (Set("ключ", b""), lambda store: store.set("ключ", b"")),
    (Append("log", bytes(range(256))), lambda store: store.append("log", bytes(range(256)))),
    (MultiSet(["a", "bb"], [b"1", b""]), lambda store: store.multi_set(["a", "bb"], [b"1", b""])),
]


def perform(op: Op) -> Move[Seat]:
    """One operation, and a question by whose answer it has been performed."""
    yield op
    yield Get("there")
    return Seat(0, 1, "")


@pytest.mark.parametrize(("op", "say"), SAID, ids=lambda value: type(value).__name__)
def test_the_generator_says_byte_for_byte_what_torchs_own_client_says(op: Op, say: Callable[[Any], object]) -> None:
    with tapped_store() as (served, tap):
        served.perform(Set("there", b"x"))
        torchs = TCPStore("127.0.0.1", tap.port, is_master=False, wait_for_workers=False)
        say(torchs)
        torchs.get("there")
        form_world(tap.port, [perform(op)])
        first, second = (bytes(heard) for heard in tap.heard)
        assert without_nonce(second) == without_nonce(first)


def test_what_no_node_says_is_not_said() -> None:
    with pytest.raises(NotImplementedError, match="Delete"):
        next(speech.talk(perform(Delete("x"))))


@pytest.mark.parametrize(
    ("read", "heard", "answer"),
    [
        (speech.read_waited, b"\x00", True),
        (speech.read_number, b"\x07" + bytes(7), 7),
        (speech.read_value, b"\x03" + bytes(7) + b"abc", b"abc"),
        (speech.read_value, bytes(8), b""),
    ],
)
def test_an_answer_may_come_in_pieces(read: speech.Reader, heard: bytes, answer: object) -> None:
    assert [read(heard[:size]) for size in range(len(heard))] == [None] * len(heard)
    assert read(heard) == answer


def test_connections_are_greeted_and_many() -> None:
    with tapped_store() as (served, _):
        sockets = list(connect(served.port, 3))
        assert len({sock.getsockname() for sock in sockets}) == 3
        for sock in sockets:
            assert not sock.getblocking()
            sock.close()
