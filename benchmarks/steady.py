"""`steady`: what a run costs while nothing happens, and whether its memory grows over many cycles.

No contest: operations, shares of a CPU and megabytes, with their targets. One of the idle nodes is a real handler with
its threads. Ten times per second it is asked whether its workers must stop, as torch's agent does. The other nodes have
one connection each and only beat. Lifelines are measured without a run: the process that holds them has no part in its
decisions. The memory is that of the store host: the server, the coordinator, and the record of
the run with a summary of each of the last 10,000 cycles.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from functools import partial
from multiprocessing import Pipe

from benchmarks import ours
from benchmarks.children import call, serving
from benchmarks.consumption import rss_bytes
from benchmarks.crowd import in_thread
from benchmarks.idle import Idled, crowding, watch_idle
from benchmarks.idle_lifelines import Held, hold
from benchmarks.measure import Case, Finding
from ft_rendezvous.config.settings import RunSettings

NAME = "steady"
IDLE_LIMIT_S = 120.0
RESTART_LIMIT_S = 600.0
GROWTH_LIMIT_KB = 4.0
"""What may be remembered of a cycle."""
LIFELINE_LIMIT_PERCENT = 1.0
"""What idle lifelines may take of a core."""
MEGA = 1_000_000
RESTARTING = 4


def cases(_is_quick: bool) -> list[Case]:
    return []


def findings(is_quick: bool) -> list[Finding]:
    count, window_s = (64, 3.0) if is_quick else (1_024, 15.0)
    lifelines = 1_000 if is_quick else 10_000
    early, late = (20, 100) if is_quick else (500, 1_000)
    return [*find_idle(count, window_s), *find_lifelines(lifelines, window_s), *find_growth(early, late)]


# --- nothing happens --------------------------------------------------------------------------------


def find_idle(count: int, window_s: float) -> list[Finding]:
    run = RunSettings(run_id="benchmark", min_nodes=count, max_nodes=count)
    inbox, outbox = Pipe(duplex=False)
    with serving(ours.serve_run, run) as (port, host_pid):
        with serving(crowding, run, port, outbox):
            outbox.close()
            idled = call(IDLE_LIMIT_S, watch_idle, run, port, host_pid, window_s)
        rate: float | Exception = inbox.recv()
    inbox.close()
    if isinstance(rate, Exception):
        raise rate
    return judge_idle(count, run.beat_s, idled, rate)


def judge_idle(count: int, beat_s: float, idled: Idled, rate_of_others: float) -> list[Finding]:
    case = f"{count:,} idle nodes, {idled.seconds:.0f} s"
    # One beat more, or less, may fall into the window than intervals do.
    is_met = abs(idled.operations - idled.seconds / beat_s) <= 1
    target = f"{1 / beat_s:g} per s"
    return [
        Finding(NAME, case, "operations of a node", idled.operations / idled.seconds, "per s", target, is_met),
        Finding(NAME, case, "the same, mean of all others", rate_of_others, "per s"),
        Finding(NAME, case, "CPU of the store host", 100 * idled.host_cpu_s / idled.seconds, "% of a core"),
        Finding(
            NAME,
            case,
            "CPU of one node, without agent and workers",
            100 * idled.node_cpu_s / idled.seconds,
            "% of a core",
        ),
    ]


def find_lifelines(count: int, window_s: float) -> list[Finding]:
    return judge_lifelines(count, hold(count, window_s))


def judge_lifelines(count: int, held: Held) -> list[Finding]:
    case = f"{count:,} idle lifelines, {held.seconds:.0f} s"
    percent = 100 * held.cpu_s / held.seconds
    target, is_met = f"under {LIFELINE_LIMIT_PERCENT:g}", percent < LIFELINE_LIMIT_PERCENT
    each_kb = (held.full_bytes - held.empty_bytes) / count / 1000
    return [
        Finding(NAME, case, "CPU of the process that holds them", percent, "% of a core", target, is_met),
        Finding(NAME, case, "its CPU to take one in", 1e6 * held.connecting_cpu_s / count, "µs"),
        Finding(NAME, case, "its memory", held.full_bytes / MEGA, "MB"),
        Finding(NAME, case, "its memory per lifeline", each_kb, "kB"),
    ]


# --- much happens -----------------------------------------------------------------------------------


def find_growth(early: int, late: int) -> list[Finding]:
    run = dataclasses.replace(ours.run_settings(RESTARTING), max_node_failures=0, crash_loop=0)
    with serving(ours.serve_run, run) as (port, host_pid):
        took_s, sizes = call(RESTART_LIMIT_S, restart_again_and_again, run, port, host_pid, (early, late))
    return judge_growth(sizes, took_s)


def restart_again_and_again(
    run: RunSettings, port: int, host_pid: int, marks: tuple[int, ...]
) -> tuple[float, dict[int, int]]:
    """Let the nodes' workers fail by turns. Returns how long it took, and the host's memory in the marked cycles."""
    sizes: dict[int, int] = {}
    is_done = threading.Event()

    def take_part(index: int) -> None:
        node = ours.open_node(run, port, index)
        while True:
            node.join()
            if node.cycle_id % run.min_nodes != index:
                node.wait_over()  # It may miss a cycle, but never its own: no other node ends that.
            elif node.cycle_id in marks:
                time.sleep(2 * run.beat_s)  # The coordinator deletes what all nodes have read, once their beats say so.
                sizes[node.cycle_id] = rss_bytes(host_pid)
                if len(sizes) == len(marks):
                    is_done.set()
                    return

    began = time.monotonic()
    working = [in_thread(partial(take_part, index)) for index in range(run.min_nodes)]
    while not is_done.wait(1.0):
        for thread in working:
            if thread.done():
                thread.result()
    return time.monotonic() - began, sizes


def judge_growth(sizes: dict[int, int], took_s: float) -> list[Finding]:
    (early, before), (late, after) = sorted(sizes.items())
    case = f"{RESTARTING} nodes restart {late:,} times, {took_s:.0f} s"
    growth_kb = (after - before) / (late - early) / 1000
    return [
        Finding(NAME, case, f"host's memory after {early:,} cycles", before / MEGA, "MB"),
        Finding(NAME, case, f"host's memory after {late:,} cycles", after / MEGA, "MB"),
        Finding(
            NAME,
            case,
            "growth per cycle",
            growth_kb,
            "kB",
            f"at most {GROWTH_LIMIT_KB:g}",
            growth_kb <= GROWTH_LIMIT_KB,
        ),
    ]
