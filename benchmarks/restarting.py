"""A world beside a spare in which the workers of one node fail: one restart, timed.

All nodes are threads of one process, the store is in another. They know that the world is over as soon as their
rendezvous lets them know: no node waits for the tick of torch's agent, and no workers take time to stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Protocol

from benchmarks import ours
from benchmarks.baselines import c10d, nvrx
from benchmarks.crowd import Formed, Seat, in_thread

PARK_LIMIT_S = 30.0
PAUSE_S = 0.01


class Node(Protocol):
    """What all contenders can do. To join again without waiting is to fail."""

    def join(self) -> Seat: ...

    def wait_over(self) -> None: ...

    @property
    def is_parked(self) -> bool: ...


Held = tuple[float, Seat]
"""When a node had its place, and which."""


def form_beside_spare(nodes: Sequence[Node], open_spare: Callable[[], Node]) -> tuple[list[Seat], Future[Held]]:
    """Let the nodes form a world, and a spare come after it. Returns their seats, and what becomes of the spare."""
    seats = [future.result() for future in [in_thread(node.join) for node in nodes]]
    spare = open_spare()
    becoming = in_thread(partial(hold, spare))
    wait_for(lambda: spare.is_parked)
    return seats, becoming


def hold(node: Node) -> Held:
    seat = node.join()
    return time.monotonic(), seat


def follow(node: Node) -> Held:
    """Train until the world is over, and be a part of the next."""
    node.wait_over()
    return hold(node)


def first(count: int, futures: Sequence[Future[Held]]) -> list[Held]:
    """The first so many results: one node is left over as the new spare."""
    pending = set(futures)
    while len(futures) - len(pending) < count:
        _, pending = wait(pending, return_when=FIRST_COMPLETED)
    return [future.result() for future in futures if future not in pending]


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PARK_LIMIT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the spare did not come")
        time.sleep(PAUSE_S)


def restart(count: int, open_node: Callable[[int], Node]) -> Formed:
    """From the failure on one node until every rank of the next world is held."""
    nodes = [future.result() for future in [in_thread(partial(open_node, index)) for index in range(count)]]
    _, becoming = form_beside_spare(nodes, lambda: open_node(count))
    following = [in_thread(partial(follow, node)) for node in nodes[1:]]
    started = time.monotonic()
    failing = in_thread(partial(hold, nodes[0]))
    held = first(count, [failing, *following, becoming])
    return Formed(max(at for at, _ in held) - started, [seat for _, seat in held])


# --- in the nodes' process --------------------------------------------------------------------------


def restart_ours(count: int, port: int) -> Formed:
    run = ours.run_settings(count, count + 1)
    return restart(count, lambda index: ours.open_node(run, port, index))


def restart_c10d(count: int, port: int) -> Formed:
    c10d.unshare_store()
    return restart(count, lambda index: c10d.open_node(count, port, index))


def restart_nvrx(count: int, port: int) -> Formed:
    return restart(count, lambda index: nvrx.open_node(count, port, index))
