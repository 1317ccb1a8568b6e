"""What one operation costs the store, and one arrival the coordinator, on this machine.

Costs are CPU time, so other work on the machine does not count. It is the CPU time of the server's process where only
the server works, and of server and caller where one waits for the other. Many connections perform the nodes'
operations, with one question each on its way. The server takes several of them in one turn of its loop, which costs it
a fraction of what as many single questions would. `coordinating` measures the coordinator.

A large request costs more than its keys: the server starts to read it again whenever more of it has arrived. So
requests with many keys are measured in two sizes, which gives a cost per key and a cost per pair of keys. Beyond these
sizes the cost grows even faster: a `multi_get` of 32,768 keys at once took the server 40 times as long as the same keys
in requests of 1,024.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.distributed import TCPStore

from benchmarks import load, ours
from benchmarks.baselines import raw
from benchmarks.children import call, serving
from benchmarks.consumption import cpu_at, cpu_of
from benchmarks.coordinating import Coordinated, time_coordinator
from benchmarks.crowd import NODES_PER_PROCESS, Formed, Seat
from benchmarks.load.crowd import form_world as form_generated
from benchmarks.measure import Finding
from benchmarks.nodes import CYCLE_ID, EPOCH
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Add, Append, Check, Get, Move, MultiGet, Op, Set
from ft_rendezvous.store.raw_client import StoreSocket

BENCHMARK, CASE = "scale", "costs"
"""As what the costs stand in results."""

FEW, MANY = 1_000, 10_000
"""Arrivals with which the coordinator is timed."""

HERD, QUICK_HERD = 512, 64
"""Connections that ask at the same time."""

THREADS = NODES_PER_PROCESS
"""Nodes of the world by which it is found out what nodes cost where all are threads of one process."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of CPU by operation, and bytes by message."""

    connect_s: float
    add_s: float
    append_s: float
    get_s: float
    hear_s: float
    check_key_s: float
    check_pair_s: float
    read_key_s: float
    read_pair_s: float
    publish_key_s: float
    publish_pair_s: float
    log_byte_s: float
    batch_keys: float
    arrival_few_s: float
    arrival_many_s: float
    look_s: float
    record_s: float
    round_trip_s: float
    record_bytes: float
    seal_bytes: float
    head_bytes: float
    ours_threads_s: float
    raw_threads_s: float
    ours_generated_s: float
    raw_generated_s: float
    cores: float

    @property
    def is_batched(self) -> bool:
        """Whether a coordinator asks for a limited number of keys at a time."""
        return self.batch_keys < MANY


LABELS = {
    "connect_s": "server: accept and greet a connection",
    "add_s": "server: `add`",
    "append_s": "server: `append` of an arrival, beyond the operation that follows it",
    "get_s": "server: `get` of the head",
    "hear_s": "server: blocked `get` of a seal: wait, wake-up, value",
    "check_key_s": "server and caller: `check` of beats, per key",
    "check_pair_s": "`check`, per key and other key of the request",
    "read_key_s": "server and caller: `multi_get` of beats, per key",
    "read_pair_s": "`multi_get`, per key and other key of the request",
    "publish_key_s": "server and caller: `multi_set` of a seal, per channel",
    "publish_pair_s": "`multi_set`, per channel and other channel of the request",
    "log_byte_s": "server and caller: `multi_get` of logs, per byte",
    "batch_keys": f"most keys in one request of a coordinator with {MANY:,} nodes",
    "arrival_few_s": f"coordinator: decode, admit, place, seat, encode, per arrival of {FEW:,}",
    "arrival_many_s": f"coordinator: the same, per arrival of {MANY:,}",
    "look_s": "coordinator: a look at the beats, per node",
    "record_s": "recorder: number, fold, encode, per arrival",
    "round_trip_s": "one `add`, by the clock",
    "record_bytes": "an arrival",
    "seal_bytes": "a channel's copy of a seal",
    "head_bytes": "the head",
    "ours_threads_s": f"a world of {THREADS} threads, ours, by the clock",
    "raw_threads_s": f"a world of {THREADS} threads, raw operations, by the clock",
    "ours_generated_s": "a generated node, ours, until it has its seat",
    "raw_generated_s": "a generated node, raw operations",
    "cores": "processors of this machine",
}
"""What each is called in results."""


def findings_of(costs: Costs) -> Iterator[Finding]:
    for name, label in LABELS.items():
        unit, scale = _unit_of(name)
        yield Finding(BENCHMARK, CASE, label, getattr(costs, name) / scale, unit)


def costs_in(findings: Iterable[Finding]) -> Costs | None:
    """The costs of an earlier run; None if it did not measure them all."""
    values = {found.what: found.value for found in findings if (found.benchmark, found.case) == (BENCHMARK, CASE)}
    if not values.keys() >= set(LABELS.values()):
        return None
    return Costs(**{name: values[label] * _unit_of(name)[1] for name, label in LABELS.items()})


def _unit_of(name: str) -> tuple[str, float]:
    if name.endswith("_s"):
        return "µs", 1e-6
    return {"batch_keys": "keys", "cores": ""}.get(name, "bytes"), 1.0


def measure(is_quick: bool) -> Costs:
    """All of them, in a few seconds."""
    few, many = time_coordinator(FEW), time_coordinator(MANY)
    return Costs(
        arrival_few_s=few.arrival_s,
        arrival_many_s=many.arrival_s,
        look_s=many.look_s,
        record_s=many.record_s,
        record_bytes=many.record_bytes,
        seal_bytes=many.seal_bytes,
        head_bytes=many.head_bytes,
        batch_keys=max(len(op.keys) for op in many.asked if isinstance(op, Check | MultiGet)),
        ours_threads_s=_median(is_quick, partial(_form, partial(serving, ours.serve, THREADS), ours.form)),
        raw_threads_s=_median(is_quick, partial(_form, partial(serving, raw.serve), raw.form)),
        ours_generated_s=_generate(is_quick, lambda count: serving(ours.serve, count), load.form_ours),
        raw_generated_s=_generate(is_quick, lambda _count: serving(raw.serve), load.form_raw),
        cores=float(os.cpu_count() or 1),
        **_measure_store(is_quick, many),
    )


def _median(is_quick: bool, sample: Callable[[], float]) -> float:
    return statistics.median(sample() for _ in range(1 if is_quick else 5))


def _form(serve: Callable[[], Any], form: Callable[[int, int], Any]) -> float:
    with serve() as port:
        seconds: float = call(60.0, form, THREADS, port).seconds
    return seconds


def _generate(is_quick: bool, serve: Callable[[int], Any], form: Callable[[int, int], Formed]) -> float:
    """CPU time of the load generator, per node."""
    count = QUICK_HERD if is_quick else 1_024

    def sample() -> float:
        with serve(count) as port:
            formed: Formed = call(60.0, form, count, port)
        return formed.busy_s / count

    return _median(is_quick, sample)


# --- the store --------------------------------------------------------------------------------------


@contextmanager
def serve() -> Iterator[tuple[int, int]]:
    """A server's port and process."""
    with raw.serve() as port:
        yield port, os.getpid()


@dataclass(frozen=True, slots=True)
class _Server:
    client: Any
    port: int
    pid: int

    def served(self, times: int, work: Callable[[], object]) -> float:
        """CPU time of the server, per time."""
        started = cpu_at(self.pid)
        for _ in range(times):
            work()
        self.client.add("done", 0)  # What is not acknowledged has been served when this has.
        return (cpu_at(self.pid) - started) / times

    def both(self, work: Callable[[], object]) -> float:
        """CPU time of the server and the caller."""
        seconds: list[float] = []
        for _ in range(3):
            caller_s = cpu_of(lambda: seconds.append(self.served(1, work)))
            seconds[-1] += caller_s
        return statistics.median(seconds)

    def bulk(self, sizes: tuple[int, int], work: Callable[[int], object]) -> tuple[float, float]:
        """CPU time of both, per key and per pair of keys in one request."""
        per_key = [self.both(partial(work, size)) / size for size in sizes]
        pair_s = max(0.0, (per_key[1] - per_key[0]) / (sizes[1] - sizes[0]))
        return per_key[0] - pair_s * sizes[0], pair_s

    def herded(self, herd: int, ops: Sequence[Op]) -> float:
        """CPU time of the server, per node of a herd of which each performs these operations, one after the other."""

        def perform() -> Move[Seat]:
            for op in ops:  # noqa: UP028 -- a list takes no answers.
                yield op
            return Seat(0, herd, "")

        return self._formed(herd, [perform() for _ in range(herd)])

    def heard(self, herd: int, value: bytes) -> float:
        """CPU time of the server, per node that blocks on a key, until it has the value."""

        def listen(is_last: bool) -> Move[Seat]:
            if is_last:
                yield Add("count", 1)  # The others are blocked when this one is answered.
                yield Set("seal", value)
            yield Get("seal")
            return Seat(0, herd, "")

        seconds = self._formed(herd, [listen(index == herd - 1) for index in range(herd)])
        self.client.delete_key("seal")
        return seconds

    def _formed(self, herd: int, moves: Sequence[Move[Seat]]) -> float:
        spent: list[float] = []
        form_generated(self.port, moves, around=lambda: spent.append(cpu_at(self.pid)))
        return (spent[1] - spent[0]) / herd


def _measure_store(is_quick: bool, sizes: Coordinated) -> dict[str, float]:
    herd, keys = (QUICK_HERD, 4_096) if is_quick else (HERD, 16_384)
    record, head, seal = (b"x" * int(size) for size in (sizes.record_bytes, sizes.head_bytes, sizes.seal_bytes))
    beats = [Keys(EPOCH).beat(f"{index:016x}") for index in range(keys)]
    logs = [Keys(EPOCH).log(CYCLE_ID, shard) for shard in range(16)]
    channels = [Keys(EPOCH).event(2, channel) for channel in range(keys // 16)]
    with serving(serve) as (port, pid):
        client: Any = TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False)
        server = _Server(client, port, pid)
        client.multi_set(["head", *beats, *logs], [head, *[b"1"] * keys, *[record * (keys // 16)] * 16])
        client.add("count", 1)  # What was set is not acknowledged, and must not be charged to others.
        times, add = 4, Add("count", 1)

        def herded(*ops: Op) -> float:
            return _median(is_quick, lambda: server.herded(herd, [*ops] * times) / times)

        add_s = herded(add)
        connections: list[StoreSocket] = []
        check_key_s, check_pair_s = server.bulk((1_024, keys), lambda size: client.check(beats[:size]))
        read_key_s, read_pair_s = server.bulk((1_024, keys), lambda size: client.multi_get(beats[:size]))
        publish_key_s, publish_pair_s = server.bulk(
            (16, len(channels)), lambda size: client.multi_set(channels[:size], [seal] * size)
        )
        return {
            "connect_s": server.served(100, lambda: connections.append(StoreSocket(raw.HOST, port))),
            "add_s": add_s,
            # Nobody waits for an append, so it goes with what follows it. A difference of noisy times can be nothing.
            "append_s": max(0.0, herded(Append("log", record), add) - add_s),
            "get_s": herded(Get("head")),
            "hear_s": _median(is_quick, lambda: server.heard(herd, seal)),
            "check_key_s": check_key_s,
            "check_pair_s": check_pair_s,
            "read_key_s": read_key_s,
            "read_pair_s": read_pair_s,
            "publish_key_s": publish_key_s,
            "publish_pair_s": publish_pair_s,
            "log_byte_s": server.both(lambda: client.multi_get(logs)) / (keys * len(record)),
            "round_trip_s": statistics.median(_clocked(lambda: client.add("count", 1)) for _ in range(100)),
        }


def _clocked(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
