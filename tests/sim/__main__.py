"""`python -m tests.sim`: run seeds (`--seeds N`), tell one story (`--seed S --trace`), time a crowd (`--crowd N`)."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ft_rendezvous.config.schema import check_known, fields_by_key, values_for
from ft_rendezvous.config.settings import RunSettings
from tests.sim.coverage import Coverage
from tests.sim.shapes import Rules
from tests.sim.world import Result, run_seed, time_crowd

TRIES = 6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Deterministic simulation of runs.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--nodes", type=int, default=None, help="MIN nodes of every run; drawn if not given")
    parser.add_argument("--rules", type=_parse_rules, default=None, help="as in --rdzv-conf; drawn if not given")
    parser.add_argument("--focus", type=_split, default=(), help="faults of every run, by name; drawn if not given")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in")
    parser.add_argument("--seed", type=int, default=None, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="print its transcript even if it holds")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, then list those that failed")
    parser.add_argument("--coverage", action="store_true", help="say how much of the package the seeds execute")
    parser.add_argument("--crowd", type=int, default=None, help="time how long this many nodes take to their places")
    parser.add_argument("--groups", type=int, default=None, help="the crowd is in this many replica groups")
    parser.add_argument("--within", type=float, default=None, help="fail if the best of six crowds takes longer (s)")
    args = parser.parse_args()
    if args.crowd is not None:
        return _time_crowd(args.crowd, args.groups, args.within)
    if args.seed is not None:
        return _tell_one(run_seed(args.seed, args.nodes, rules=args.rules, focus=args.focus), args.trace)
    if args.coverage:
        return _tell_coverage(range(args.start, args.start + args.seeds))
    return _run_many(args)


def _tell_coverage(seeds: range) -> int:
    coverage = Coverage()
    with coverage.watching():
        for seed in seeds:
            run_seed(seed)
    sys.stdout.write("\n".join(coverage.table()) + "\n")
    return 0


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _parse_rules(text: str) -> Rules:
    """`segment=2,policy=elastic`; none at all is no rules."""
    given = dict(part.split("=", 1) for part in _split(text))
    check_known(given, fields_by_key(RunSettings))
    return values_for(RunSettings, given)


def _time_crowd(count: int, groups: int | None, within_s: float | None) -> int:
    """The best of a few: what else the machine does can only make a run slower."""
    times: list[float] = []
    while len(times) < TRIES and not (times and within_s is not None and min(times) < within_s):
        times.append(time_crowd(count, groups))
    listed = ", ".join(f"{took_s:.2f}" for took_s in times)
    of_groups = "" if groups is None else f" of {groups} groups"
    sys.stdout.write(f"{count} nodes{of_groups} took their places in one cycle in {listed} s of wall time\n")
    return int(within_s is not None and min(times) >= within_s)


def _tell_one(result: Result, is_traced: bool) -> int:
    if is_traced or result.violation is not None:
        sys.stdout.write("\n".join(result.transcript) + "\n")
    verdict = f"violates {result.violation}" if result.violation else "holds"
    sys.stdout.write(
        f"seed {result.seed} {verdict}; {result.cycles} cycles, {result.steps} steps, {result.ended_at:.1f} s of "
        f"virtual time, digest {result.digest:08x}\n"
    )
    return int(result.violation is not None)


def _run_many(args: argparse.Namespace) -> int:
    console = Console(stderr=True)
    failed: list[Result] = []
    began = time.monotonic()
    seeds = range(args.start, args.start + args.seeds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with multiprocessing.Pool(args.jobs) as pool, Progress(*columns, console=console) as progress:
        bar = progress.add_task("seeds", total=len(seeds))
        run = partial(_run_quietly, nodes=args.nodes, rules=args.rules, focus=args.focus)
        for result in pool.imap(run, seeds, chunksize=8):
            progress.advance(bar)
            if result.violation is not None:
                failed.append(result)
                if not args.keep_going:
                    break
    if not failed:
        console.print(f"{len(seeds)} seeds hold in {time.monotonic() - began:.1f} s")
        return 0
    if args.keep_going:
        counts = Counter(result.violation.checker for result in failed if result.violation)
        console.print(f"{len(failed)} of {len(seeds)} seeds fail in {time.monotonic() - began:.1f} s: {dict(counts)}")
        for result in failed:
            sys.stdout.write(f"{result.seed}\t{result.violation}\n")
        return 1
    return _tell_one(failed[0], True)


def _run_quietly(seed: int, nodes: int | None, rules: Rules | None, focus: tuple[str, ...]) -> Result:
    """A transcript is kept only where it is needed: it crosses a pipe."""
    result = run_seed(seed, nodes, rules=rules, focus=focus)
    if result.violation is None:
        result.transcript.clear()
    return result


if __name__ == "__main__":
    sys.exit(main())
