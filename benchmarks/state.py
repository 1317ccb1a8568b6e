"""`state`: what a state server answers about a large run, over HTTP, just after something has changed.

"Encoded in place" makes the same bytes from the same state, in the asking process and without a server: any JSON answer
costs at least this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from itertools import count

import msgspec

from benchmarks.measure import OURS, Case, Sample, require, timed
from ft_rendezvous.core.model import FirstCycle, Placement
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.events import decode_line, encode_line, make_event
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.web.app import make_app
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.routes import PREFIX
from ft_rendezvous.state.web.serving import Serving, serve

NAME = "state"
NODES = 10_000
EPOCH = "5eed"
BORN_NS = 1_800_000_000 * NS


def cases(is_quick: bool) -> list[Case]:
    rounds = 5 if is_quick else 25
    return [
        Case(NAME, f"{NODES:,} nodes, /runs", rounds, partial(_prepare, "/runs", _encode_runs)),
        Case(
            NAME,
            f"{NODES:,} nodes, /runs/ID/nodes",
            rounds,
            partial(_prepare, f"/runs/{EPOCH}/nodes", _encode_nodes),
        ),
    ]


def large_run(nodes: int) -> Iterator[bytes]:
    """The events of a run in which so many nodes train."""
    names = tuple(f"{number:016x}" for number in range(nodes))
    entries: list[journal.Entry] = [
        journal.RunBegan(
            run_id="large", epoch=EPOCH, settings={"nnodes": f"{nodes}:{nodes}"}, versions={}, host="head pid 1"
        ),
        journal.CycleOpened(cycle_id=1, why=FirstCycle(), roles={}),
        *(_join(number, name) for number, name in enumerate(names)),
        journal.NodesArrived(cycle_id=1, incarnations=names),
        journal.CycleSealed(
            cycle_id=1, placement=Placement(ranks=names, standbys=()), roles={}, waited_s=1.0, master="10.0.0.0:29500"
        ),
    ]
    for number, entry in enumerate(entries, start=1):
        yield encode_line(make_event(number, BORN_NS + number, entry))


def look(event_id: int) -> bytes:
    """One more event, which changes nothing but the time."""
    entry = journal.Looked(cycle_id=1, live=NODES, oldest_s=1.0, operations=event_id)
    return encode_line(make_event(event_id, BORN_NS + event_id, entry))


@contextmanager
def serving(live_run: LiveRun) -> Iterator[int]:
    """A state server; gives its port."""
    ready: list[Serving] = []
    is_ready = threading.Event()

    def tell(server: Serving) -> None:
        ready.append(server)
        is_ready.set()

    app = make_app(live_run, None, lambda: BORN_NS + NS)
    thread = threading.Thread(target=serve, args=(app, "127.0.0.1", 0, tell), daemon=True)
    thread.start()
    require(is_ready.wait(30), "the state server is not there after 30 s")
    try:
        yield ready[0].port
    finally:
        ready[0].stop()
        thread.join(10)


def _join(number: int, name: str) -> journal.NodeJoined:
    addr = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return journal.NodeJoined(
        cycle_id=1,
        incarnation=name,
        node=f"infra rank {number} at {addr} pid {number}",
        is_spare=False,
        addr=addr,
        pid=number,
        infra_rank=number,
        domain=f"rack{number // 72}",
        unit=None,
        worker_role="default",
        workers=8,
    )


@contextmanager
def _prepare(path: str, encode: Callable[[LiveRun], bytes]) -> Iterator[Mapping[str, Sample]]:
    live_run = LiveRun()
    for line in large_run(NODES):
        live_run.take(decode_line(line), line)
    numbers = count(live_run.read(lambda state: state.event_id) + 1)

    def change() -> None:
        line = look(next(numbers))
        live_run.take(decode_line(line), line)

    with serving(live_run) as port:
        connection = HTTPConnection("127.0.0.1", port)
        yield {
            OURS: partial(_sample, change, lambda: _get(connection, path), encode, live_run),
            "encoded in place": partial(_sample, change, lambda: encode(live_run), encode, live_run),
        }
        connection.close()


def _get(connection: HTTPConnection, path: str) -> bytes:
    connection.request("GET", PREFIX + path)
    return connection.getresponse().read()


def _sample(
    change: Callable[[], None], work: Callable[[], bytes], encode: Callable[[LiveRun], bytes], live_run: LiveRun
) -> float:
    change()
    seconds, body = timed(work)
    require(body == encode(live_run), "the answer is not what is known")
    return seconds


def _encode_runs(live_run: LiveRun) -> bytes:
    return msgspec.json.encode([live_run.read(lambda state: view.view_run(state, BORN_NS + NS))])


def _encode_nodes(live_run: LiveRun) -> bytes:
    return msgspec.json.encode(live_run.read(view.view_nodes))
