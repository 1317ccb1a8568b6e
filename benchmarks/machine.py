"""The machine on which a run was made: without this, the numbers of two runs cannot be compared.

A TCPStore looks up the name of every client on its only thread. Where no server answers, that is a pause of seconds
which has nothing to do with what is measured: it is looked for before and after a run, with the resolver options of the
run and without them, and samples that may contain one are counted.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.baselines import nvrx, ray_train, torchft

ROOT = Path(__file__).parent.parent
ADDRESSES = ("127.0.0.1", "::ffff:127.0.0.1")
"""As which a client on this machine is looked up."""

MEASURED = ("ft_rendezvous", "benchmarks/*.py", "tests/integration", "examples")
"""What a run's numbers depend on."""
SLOW_LOOKUP_S = 0.1
LOOKUP_LIMIT_S = 15.0
"""How long to wait for lookups that get no answer."""

RESOLVER_TIMEOUT_S = 5.0
"""How long a resolver waits for an answer by default."""

_LOOK_UP = """
import socket, sys, time
started = time.perf_counter()
try:
    socket.getnameinfo((sys.argv[1], 0), 0)
except OSError:
    pass
print(time.perf_counter() - started)
"""


def describe() -> dict[str, Any]:
    """Commit, versions, cores, load, and how long a reverse lookup of a client's address takes."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "has_local_changes": bool(_git("status", "--porcelain", "--", *MEASURED)),
        "torch": torch.__version__,
        nvrx.PACKAGE: nvrx.installed_version(),
        torchft.PACKAGE: torchft.installed_version(),
        ray_train.PACKAGE: ray_train.installed_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "resolver_options": os.environ.get("RES_OPTIONS"),
        **describe_now(),
    }


def describe_now() -> dict[str, Any]:
    """What may change during a run, and is therefore looked at before and after it."""
    return {
        "load_1min": os.getloadavg()[0],
        "reverse_dns_s": {address: time_lookup(address) for address in ADDRESSES},
        "plain_reverse_dns_s": time_plain_lookups(),
    }


def time_lookup(address: str) -> float:
    """Seconds a reverse lookup takes. TCPStore makes one for every client, on its only thread."""
    started = time.perf_counter()
    with contextlib.suppress(OSError):  # No name is an answer too.
        socket.getnameinfo((address, 0), 0)
    return time.perf_counter() - started


def time_plain_lookups() -> dict[str, float]:
    """The same without RES_OPTIONS, which a process reads but once: so in children, all at once."""
    environment = {name: value for name, value in os.environ.items() if name != "RES_OPTIONS"}
    command = [sys.executable, "-I", "-S", "-c", _LOOK_UP]
    children = {
        address: subprocess.Popen([*command, address], env=environment, stdout=subprocess.PIPE, text=True)
        for address in ADDRESSES
    }
    return {address: _seconds_told_by(child) for address, child in children.items()}


def _seconds_told_by(child: subprocess.Popen[str]) -> float:
    """What a child measured; the limit where it was still waiting then."""
    try:
        return float(child.communicate(timeout=LOOKUP_LIMIT_S)[0])
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return LOOKUP_LIMIT_S


# --- what it means ----------------------------------------------------------------------------------


def explain_lookups(machine: Mapping[str, Any]) -> str:
    """What reverse lookups did to a run, in one sentence."""
    in_run, plain = _slowest(machine, "reverse_dns_s"), _slowest(machine, "plain_reverse_dns_s")
    options = machine["resolver_options"]
    setting = f"RES_OPTIONS={options!r}" if options else "no RES_OPTIONS"
    if in_run is None:
        return "how long reverse lookups take was not measured"
    if in_run > SLOW_LOOKUP_S:
        return f"a reverse lookup takes {in_run:.1f} s with {setting}: every connection to a TCPStore waits so long"
    if plain is None:
        return f"reverse lookups took at most {in_run * 1e3:.1f} ms with {setting}; without was not measured"
    if plain > SLOW_LOOKUP_S:
        return f"a reverse lookup takes {plain:.1f} s on this machine; removed for this run by {setting}"
    return f"reverse lookups took at most {max(in_run, plain) * 1e3:.1f} ms, with {setting} and without: no pauses"


def explain_pauses(machine: Mapping[str, Any], samples: Iterable[tuple[str, Sequence[float]]]) -> str:
    """Whose samples may contain a pause; nothing if none does. Samples come by contender and case, with their name."""
    pause_s = _pause_s(machine)
    counts = [(name, count_pauses(seconds, pause_s)) for name, seconds in samples]
    found = [f"{count} of {name}" for name, count in counts if count]
    if not found:
        return ""
    total = sum(count for _, count in counts)
    subject = "1 sample" if total == 1 else f"{total} samples"
    why = f"slower than the median by about a multiple of {pause_s:.1f} s"
    return f"{subject} may contain a DNS pause, {why}: {'; '.join(found)}"


def count_pauses(seconds: Sequence[float], pause_s: float) -> int:
    """Samples that are over a second slower than their median, by about a multiple of the pause."""
    if not seconds:
        return 0
    median = statistics.median_low(seconds)
    excesses = [sample - median for sample in seconds if sample - median > 1.0]
    return sum(round(excess / pause_s) >= 1 and abs(excess / pause_s % 1.0 - 0.5) > 0.4 for excess in excesses)


def _pause_s(machine: Mapping[str, Any]) -> float:
    """How long a pause would be: as it was measured, else as long as the resolver waits."""
    for which in ("reverse_dns_s", "plain_reverse_dns_s"):
        slowest = _slowest(machine, which)
        if slowest is not None and slowest > SLOW_LOOKUP_S:
            return slowest
    found = re.search(r"timeout:(\d+)", machine["resolver_options"] or "")
    return float(found[1]) if found and int(found[1]) else RESOLVER_TIMEOUT_S


def _slowest(machine: Mapping[str, Any], which: str) -> float | None:
    """The slowest lookup before or after the run; None if there was none."""
    looks = [machine, machine.get("after", {})]
    return max((seconds for look in looks for seconds in look.get(which, {}).values()), default=None)


def _git(*arguments: str) -> str | None:
    """What git says, read-only; None outside of a repository."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
