"""`scale`: how long a world of N nodes takes to form, and which limit is reached first, by a model: operations x cost.

The store serves one operation at a time. The coordinator decides in one thread. Each waits for the other. So the time
to form is a sum, with the costs of this machine, from the moment when all nodes are connected:

    arrive     N x (`compare_set`, `add`, `append`, `get` of the head)          the store
    decide     logs, `check` and `multi_get` of N beats, `multi_set` of the     both, in turn
               seal; N x (decode, admit, place, seat, encode)
    hear       N x (blocked `get` of the seal, woken)                           the store
    latency    the round trips of the last node, and of the coordinator         the network

The model takes a `compare_set`, by which a node beats, to cost as much as an `add`.

The model leaves out: beats while the world forms (the page shows their share of the store's time), earlier looks of the
coordinator (the measured time of the store host includes them), phases that overlap, a network slower than loopback,
lost packets, memory. A *node* costs nothing here: each has a machine of its own.

Two predictions are checked. The first is the CPU time of the store host in worlds of generated nodes: all of the above
without the latency, and the recording of the run, for which no node waits. The second is the time of measured worlds.
All their nodes are on the store's machine, so the nodes' work is added:

    threads    what a world of 64 threads in one process takes beyond the model, per node; several such processes
               share the processors (so a world of 64 threads cannot check the model, and is left out)
    generated  the load generator's CPU per node; the generator and the store work at the same time, so the longer of
               both counts
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks import load, ours
from benchmarks.children import call, serving
from benchmarks.costs import BENCHMARK, FEW, THREADS, Costs, findings_of, measure
from benchmarks.crowd import Formed
from benchmarks.measure import OURS, Case, Finding
from benchmarks.report import Row
from benchmarks.runs import NodeCase, parse_case
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.protocol.codec import channel_count

NAME = BENCHMARK
RAW = "raw operations"
LASTS = "lasts for"
HOST_CPU = "CPU of the store host"
"""The case in which it stands in results, by nodes."""
CHECKED = (1_024, 4_096, 10_000)
CHECK_LIMIT_S = 120.0
NODES = (8, 64, 256, 1_024, 4_096, 10_000, 32_768, 100_000)
TARGET = NODES[-1]
PHASES = f"while {TARGET:,} nodes form a world"
GENERATED = "generated"
"""How worlds are marked whose nodes are no threads."""

CONNECTIONS = 2
"""Per node that is in the run; while it greets the store it has a third."""
ROUND_TRIPS = {OURS: 13, RAW: 6}
"""On the way from the last arrival to the last seat: the node's, the bell's and the coordinator's."""
NETWORK_BYTES_S = 10e9 / 8
PACKET_BYTES = 66
"""Of headers."""

_defaults = RunSettings(run_id="benchmark", min_nodes=1, max_nodes=1)
BEAT_S, LEASE_S = _defaults.beat_s, _defaults.lease_s


@dataclass(frozen=True, slots=True)
class Model:
    """Predictions from costs, in seconds."""

    costs: Costs

    def arrive(self, nodes: int) -> float:
        return nodes * (2 * self.costs.add_s + self.costs.append_s + self.costs.get_s)

    def decide(self, nodes: int) -> float:
        costs, channels = self.costs, channel_count(nodes)
        read = nodes * costs.record_bytes * costs.log_byte_s + self.check(nodes) + self.read_beats(nodes)
        publish = channels * (costs.publish_key_s + channels * costs.publish_pair_s)
        return read + publish + nodes * (costs.arrival_few_s if nodes <= FEW else costs.arrival_many_s)

    def hear(self, nodes: int) -> float:
        return nodes * self.costs.hear_s

    def form(self, nodes: int, contender: str = OURS) -> float:
        """Every node on a machine of its own."""
        decide_s = self.decide(nodes) if contender == OURS else 0.0
        latency_s = ROUND_TRIPS[contender] * self.costs.round_trip_s
        return self.arrive(nodes) + decide_s + self.hear(nodes) + latency_s

    def host(self, nodes: int) -> float:
        """CPU time of the store host: of the server, of the coordinator, and to record the run."""
        return self.arrive(nodes) + self.decide(nodes) + self.hear(nodes) + nodes * self.costs.record_s

    def form_threads(self, nodes: int, contender: str = OURS) -> float:
        """All nodes threads, by 64 in a process, on the machine of the store."""
        taken_s = self.costs.ours_threads_s if contender == OURS else self.costs.raw_threads_s
        own_s = max(0.0, taken_s - self.form(THREADS, contender)) / THREADS
        side_by_side = min(self.costs.cores, -(-nodes // THREADS))
        return self.form(nodes, contender) + nodes * own_s / side_by_side

    def form_generated(self, nodes: int, contender: str = OURS) -> float:
        """All nodes in one thread of one process, beside the store."""
        node_s = self.costs.ours_generated_s if contender == OURS else self.costs.raw_generated_s
        store_s = self.arrive(nodes) + self.hear(nodes)
        return self.form(nodes, contender) - store_s + max(store_s, nodes * node_s)

    def connect(self, nodes: int) -> float:
        return nodes * (CONNECTIONS + 1) * self.costs.connect_s

    def check(self, nodes: int) -> float:
        return self._bulk(nodes, self.costs.check_key_s, self.costs.check_pair_s)

    def read_beats(self, nodes: int) -> float:
        return self._bulk(nodes, self.costs.read_key_s, self.costs.read_pair_s)

    def _bulk(self, keys: int, key_s: float, pair_s: float) -> float:
        """A request for many keys; in batches, if that is how the coordinator asks when there are many."""
        batch = min(keys, self.costs.batch_keys) if self.costs.is_batched else keys
        return keys * (key_s + batch * pair_s)

    def transfer(self, nodes: int) -> float:
        """All bytes to and from the store, with three packets per operation, through one 10 Gbit/s network card."""
        costs = self.costs
        per_node = costs.record_bytes + costs.head_bytes + costs.seal_bytes + 7 * 3 * PACKET_BYTES
        return nodes * per_node / NETWORK_BYTES_S

    def beat_share(self, nodes: int) -> float:
        """What part of the store's time beats alone take."""
        return nodes * self.costs.add_s / BEAT_S

    def lasts_for(self) -> dict[str, int]:
        """For how many nodes each resource lasts, with default settings."""
        files, beat_bytes = resource.getrlimit(resource.RLIMIT_NOFILE)[1], 3 * PACKET_BYTES + 80
        look_s, look_limit_s = self.costs.look_s, LEASE_S / 4
        return {
            f"open files of the store host ({CONNECTIONS} per node, at most {files:,})": (files - ours.FILES_BESIDE)
            // CONNECTIONS,
            f"the store, if all nodes beat every {BEAT_S:g} s": _most(lambda n: self.beat_share(n) <= 1),
            f"the store, if all arrive at once and a beat waits {LEASE_S:g} s": _most(
                lambda n: self.arrive(n) <= LEASE_S
            ),
            f"the coordinator, if it reads all beats in {look_limit_s:g} s": _most(
                lambda n: self.read_beats(n) + n * look_s <= look_limit_s
            ),
            f"a network of 10 Gbit/s, if all nodes beat every {BEAT_S:g} s": _most(
                lambda n: n * beat_bytes <= NETWORK_BYTES_S * BEAT_S
            ),
        }


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, to a hundredth."""
    low, high = 0, 1 << 32
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# --- as a benchmark ---------------------------------------------------------------------------------


def cases(_is_quick: bool) -> list[Case]:
    """Nobody to take turns with."""
    return []


def findings(is_quick: bool) -> list[Finding]:
    counts = (FEW,) if is_quick else CHECKED
    return tell(measure(is_quick), {count: measure_host(count) for count in counts})


def measure_host(nodes: int) -> float:
    """CPU time of the store host while generated nodes form a world."""
    with serving(ours.serve_run, ours.run_settings(nodes)) as (port, pid):
        formed: Formed = call(CHECK_LIMIT_S, load.form_ours, nodes, port, pid)
    return formed.host_s


def tell(costs: Costs, hosts_s: Mapping[int, float]) -> list[Finding]:
    """The costs, from which a reader can predict again; what they predict; and the limits, lowest first."""
    model, found = Model(costs), list(findings_of(costs))
    found += [Finding(NAME, HOST_CPU, f"{nodes:,} nodes", seconds, "s") for nodes, seconds in hosts_s.items()]
    for nodes in NODES:
        case = f"{nodes:,} nodes"
        found.append(Finding(NAME, case, "predicted time to form", model.form(nodes), "s"))
        found.append(Finding(NAME, case, "share of the store's time that beats take", model.beat_share(nodes), ""))
    for what, work in (
        ("connecting, before: the store", model.connect),
        ("nodes arrive: the store", model.arrive),
        ("the cycle is sealed: the coordinator and the store, in turn", model.decide),
        ("nodes hear of it: the store", model.hear),
        ("meanwhile: a network of 10 Gbit/s", model.transfer),
    ):
        found.append(Finding(NAME, PHASES, what, work(TARGET), "s"))
    for what, nodes in sorted(model.lasts_for().items(), key=lambda item: item[1]):
        found.append(Finding(NAME, LASTS, what, nodes, "nodes", f"{TARGET:,}", nodes >= TARGET))
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured world, and what the model says of it."""

    nodes: int
    case: str
    contender: str
    measured_s: float
    predicted_s: float
    """With every node on a machine of its own."""
    here_s: float
    """With the nodes where they were when it was measured."""


def compare(rows: Iterable[Row], costs: Costs) -> list[Comparison]:
    """Every world of `form` whose operations the model knows."""
    model = Model(costs)
    return [
        Comparison(
            nodes=case.nodes,
            case=row.case,
            contender=row.contender,
            measured_s=row.median_s,
            predicted_s=model.form(case.nodes, row.contender),
            here_s=(model.form_generated if case.rest == GENERATED else model.form_threads)(case.nodes, row.contender),
        )
        for row in rows
        if row.benchmark == "form" and row.contender in ROUND_TRIPS and row.median_s is not None
        if (case := parse_case(row.case)) is not None and _is_known(case)
    ]


def _is_known(case: NodeCase) -> bool:
    """Whether the model knows how these nodes were laid out, and was not made from them."""
    return case.rest == GENERATED or (case.rest == "" and case.nodes != THREADS)


@dataclass(frozen=True, slots=True)
class HostCheck:
    """What the store host took, and what the model says of it."""

    nodes: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def check_hosts(findings: Iterable[Finding], costs: Costs) -> list[HostCheck]:
    model = Model(costs)
    measured = [
        (case.nodes, found.value)
        for found in findings
        if (found.benchmark, found.case) == (NAME, HOST_CPU) and (case := parse_case(found.what)) is not None
    ]
    return [HostCheck(nodes, seconds, model.host(nodes)) for nodes, seconds in measured]
