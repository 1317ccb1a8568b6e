"""`failing`: all workers of a world fail at once, as when a collective breaks, and every node says so. No store.

The coordinator reads the reports, notes each, journals and logs it, opens the next cycle, and settles which node failed
first. "Reading alone" decodes the same reports and does nothing with them: it is the lower limit. Times are CPU time:
other work on the machine does not count.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import msgspec

from benchmarks.consumption import cpu_of
from benchmarks.coordinating import Shelf, arrive, write_logs
from benchmarks.measure import OURS, Case, Finding, Sample, require
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.lifecycle import Phase
from ft_rendezvous.core.model import Arrival, Failure
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import Entry, WorkersEnded, log_entry, tell_all
from ft_rendezvous.protocol.ops import perform_move

NAME = "failing"
COUNT = 10_000
FEW = 1_000
READING = "reading alone"


def cases(is_quick: bool) -> list[Case]:
    rounds = 3 if is_quick else 9
    return [
        Case(NAME, f"{count:,} nodes, {how} infra ranks", rounds, partial(_prepare, count, has_infra_ranks))
        for count in (FEW, COUNT)
        for how, has_infra_ranks in (("with", True), ("without", False))
    ]


def make_world(count: int, has_infra_ranks: bool) -> list[Arrival]:
    arrivals = make_arrivals(count)
    if has_infra_ranks:
        return arrivals
    return [
        msgspec.structs.replace(arrival, node=msgspec.structs.replace(arrival.node, infra_rank=None))
        for arrival in arrivals
    ]


def make_failures(count: int) -> list[Failure]:
    """Every node's report, with the times at which a broken collective ends workers."""
    return [
        Failure(
            cycle_id=CYCLE_ID,
            incarnation=f"{index:016x}",
            reason=f"worker {index % 8} was ended by signal 6 (SIGABRT)",
            rank=index * 8 + index % 8,
            exit_code=-6,
            after_s=3600.0 + ((index * 7_919 + 5) % count) * 0.02,
            log_path=f"/scratch/run/node-{index:05d}/attempt_0/3/stderr.log",
            last_words="RuntimeError: NCCL communicator was aborted on rank 3.",
        )
        for index in range(count)
    ]


@contextmanager
def _prepare(count: int, has_infra_ranks: bool) -> Iterator[Mapping[str, Sample]]:
    world, failures = make_world(count, has_infra_ranks), make_failures(count)
    with _logged_to_nothing():
        yield {
            OURS: partial(_sample_ours, world, failures),
            READING: partial(_sample_reading, world, failures),
        }


@contextmanager
def _logged_to_nothing() -> Iterator[None]:
    """Lines are formatted and written, as on a host."""
    logger = logging.getLogger("ft_rendezvous")
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        handler, level, passes_on = logging.StreamHandler(nothing), logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = passes_on


def _sample_ours(world: list[Arrival], failures: list[Failure]) -> float:
    count, shelf, entries = len(world), Shelf(), list[Entry]()
    settings = RunSettings(run_id="benchmark", min_nodes=count, max_nodes=count)
    coordinator = Coordinator(settings, EPOCH, lambda: 0.0, tell_all(entries.append, log_entry))
    perform_move(shelf, coordinator.start())
    arrive(shelf, coordinator.keys, world)
    perform_move(shelf, coordinator.tick())
    require(coordinator.phase is Phase.SEALED, "the coordinator did not seal")
    entries.clear()
    write_logs(shelf, coordinator.keys, failures)

    def fail() -> None:
        perform_move(shelf, coordinator.tick())
        coordinator.membership.ledger.settle(0.0, is_excused=False, can_lose=lambda _: True)

    gc.collect()
    seconds = cpu_of(fail)
    require(coordinator.phase is Phase.OPEN, "the coordinator did not open the next cycle")
    require(sum(isinstance(entry, WorkersEnded) for entry in entries) == count, "failures were lost")
    first = coordinator.membership.ledger.last
    require(first is not None and first.after_s == 3600.0, "another failure was taken for the first")
    return seconds


def _sample_reading(world: list[Arrival], failures: list[Failure]) -> float:
    count, shelf, keys = len(world), Shelf(), Keys(EPOCH)
    reader = moves.LogReader(CYCLE_ID, codec.shard_count(count))
    shelf.values.update({keys.arrived(CYCLE_ID): b"0", keys.withdrawn(CYCLE_ID): b"0"})
    write_logs(shelf, keys, failures)
    readings: list[moves.Reading] = []
    gc.collect()
    seconds = cpu_of(lambda: readings.append(perform_move(shelf, moves.read_logs(keys, [reader]))))
    require(len(readings[0].records) == count and not readings[0].bad, "failures were lost")
    return seconds


def findings(is_quick: bool) -> list[Finding]:
    """How the cost grows from few nodes to many."""
    rounds = 1 if is_quick else 3
    found: list[Finding] = []
    for how, has_infra_ranks in (("with", True), ("without", False)):
        with _logged_to_nothing():
            few, many = (
                min(_sample_ours(make_world(count, has_infra_ranks), make_failures(count)) for _ in range(rounds))
                for count in (FEW, COUNT)
            )
        growth, factor = many / few, COUNT / FEW
        what = f"{FEW:,} to {COUNT:,} nodes, {how} infra ranks"
        is_linear = growth <= 1.5 * factor
        found.append(Finding(NAME, what, "time grows by", growth, "×", f"at most {1.5 * factor:g}", is_linear))
    return found
