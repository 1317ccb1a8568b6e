"""`ray`: a machine of a Ray cluster is lost while it trains, and a run is started, by `ftr ray` and beside it.

The cluster is real: a head without CPUs and raylets with one CPU each, all on this machine, each with an address of its
own. Two machines train and a third one is free. The training is a small data parallel one on gloo, with steps of about
0.15 s and a checkpoint every 20 steps. It is the same script for all contenders. All settings are the defaults, except
that the processes of Ray have the usual priority (`RAY_worker_niceness=0`), as those that are started without Ray.

    ours           `ftr ray --nnodes 2 --spares 1` (a lease of 5 s). The third machine has the spare
    Ray Train      version 2 of it: a `TorchTrainer` with `FailureConfig(max_failures=-1)`. It finds the third machine
                   free. Its controller is on the head

A machine is *killed* (SIGKILL) or falls *silent* (SIGSTOP: no connection closes), always the one of rank 1, with its
raylet and all processes on it at once. Times are from then until rank 1 has trained its next step. Every sample has a
cluster of its own. There are three samples of a kill, and two of a silence.

In the last case eight nodes are started, one to a machine, on a cluster that has started such a run before: from the
command until the slowest worker has trained its first step. *torchruns* are a store (`ftr serve`) and eight torchruns
with our backend, started directly. In both, eight workers and eight torchruns import torch on few cores. `ftr ray` also
starts a driver and a process for each actor.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec

from benchmarks.baselines import ray_train
from benchmarks.measure import OURS, Case, Sample
from benchmarks.ray_training import SETUPS, cluster, lose, start_directly, start_on_ray

NAME = "ray"
ACTIVE, SPARES = 2, 1
KILLS, SILENCES = 3, 2
STARTED, STARTS, WARM_UPS = 8, 3, 1
DIRECTLY = "torchruns"


def cases(is_quick: bool) -> list[Case]:
    """None in a smoke run: a cluster alone takes longer to start than most of its benchmarks take."""
    if is_quick or find_spec("ray") is None:
        return []
    return [
        _machine_lost("is killed", signal.SIGKILL, KILLS),
        _machine_lost("falls silent", signal.SIGSTOP, SILENCES),
        Case(NAME, f"{STARTED} nodes start: trained", STARTS, partial(prepare_start, STARTED), WARM_UPS),
    ]


def _machine_lost(how: str, signum: signal.Signals, rounds: int) -> Case:
    has_theirs = ray_train.installed_version() is not None
    contenders: dict[str, Sample] = {
        name: partial(lose, setup, signum, ACTIVE, SPARES)
        for name, setup in SETUPS.items()
        if name == OURS or has_theirs
    }
    name = f"{ACTIVE} + {SPARES} machines, one {how}: trained"
    return Case(NAME, name, rounds, lambda: nullcontext(contenders), warm_ups=0)


@contextmanager
def prepare_start(count: int) -> Iterator[Mapping[str, Sample]]:
    with cluster(count) as machines:
        yield {OURS: partial(start_on_ray, machines, count), DIRECTLY: partial(start_directly, count)}
