"""Virtual time: a heap of what happens next, processes with clocks of their own, threads as generators, and
connections with delays.

Owns when things happen and nothing of what they mean. A thread is a generator that yields what it waits for
(`Sleep`, `Wait`, `Call`); between two yields it runs alone, as code under a lock does. A paused process takes no
step until it is resumed, a dead one never again; what it sent before is on its way all the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Any

from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import Append, Get, MultiGet, MultiSet, Op, Set
from tests.sim.store import SimStore

SHORTEST_S = 1e-6
"""No wait is shorter, so that virtual time always advances."""
TORN, TORN_S = 0.3, 0.02
"""How often a `multi_set` comes in two pieces, and how long the second may take."""
THREAD_LAG_S = 2e-4
"""A thread that may run does so within this time; the order of threads is drawn anew each time."""


class Kernel:
    """What happens next, and the one source of chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.random = rng.random
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._pushed = 0

    def at(self, time: float, act: Callable[..., object], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (time, self._pushed, act, args))

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + self.random() * THREAD_LAG_S, self._pushed, act, args))

    def step(self) -> bool:
        """Let the next thing happen. False if nothing ever will."""
        if not self._heap:
            return False
        self.now, _, act, args = heapq.heappop(self._heap)
        self.steps += 1
        act(*args)
        return True


# --- threads ----------------------------------------------------------------------------------------


class Condition:
    """Threads that wait to be told of a change."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[tuple[Thread, int, Callable[[], bool] | None]] = []

    def notify_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for thread, ticket, is_ready in waiting:
            if ticket != thread.ticket:
                continue
            if is_ready is None or is_ready():
                thread.process.kernel.soon(thread.resume, ticket, True)
            else:
                self.waiting.append((thread, ticket, is_ready))


@dataclass(slots=True, eq=False)
class Sleep:
    """Yielded by a thread: go on after this long on its own clock."""

    seconds: float


@dataclass(slots=True, eq=False)
class Wait:
    """Yielded by a thread: go on when notified (True) or after this long on its own clock (False)."""

    condition: Condition
    seconds: float | None = None
    is_ready: Callable[[], bool] | None = None
    """A wake-up after which the thread would only wait again is spared; what it finds when it runs may differ."""


@dataclass(slots=True, eq=False)
class Call:
    """Yielded by a thread: go on with the reply of a store operation. Raises StoreUnavailable in it."""

    connection: Connection
    op: Op
    timeout_s: float | None = None
    """After so long on the process's clock the connection counts as broken."""


Request = Sleep | Wait | Call
Routine = Generator[Request, Any, Any]


class Thread:
    """One generator and what it waits for. A ticket makes every wake-up but the first one void."""

    __slots__ = ("is_done", "name", "process", "routine", "signal", "ticket")

    def __init__(self, process: Process, name: str, routine: Routine) -> None:
        self.process = process
        self.name = name
        self.routine = routine
        self.ticket = 0
        self.is_done = False
        self.signal: BaseException | None = None
        process.kernel.soon(self.resume, 0, None)

    def resume(self, ticket: int, value: Any = None, error: BaseException | None = None) -> None:
        process = self.process
        if ticket != self.ticket or process.is_dead or self.is_done:
            return
        if process.is_paused:
            process.backlog.append((self.resume, (ticket, value, error)))
            return
        self.ticket = ticket = ticket + 1
        if self.signal is not None:
            error, self.signal = self.signal, None
        try:
            request = self.routine.throw(error) if error is not None else self.routine.send(value)
        except StopIteration:
            self.is_done = True
            return
        except Exception as thrown:
            self.is_done = True
            process.on_thread_death(self, thrown)
            return
        self._wait_for(request, ticket)

    def _wait_for(self, request: Request, ticket: int) -> None:
        process, kernel = self.process, self.process.kernel
        if isinstance(request, Call):
            request.connection.call(self, ticket, request.op)
            # Where nothing goes wrong, no call takes long.
            if request.timeout_s is not None and not request.connection.server.reads_in_one_step:
                expires_at = kernel.now + request.timeout_s / process.rate
                kernel.at(expires_at, process.deliver, request.connection.time_out, self, ticket)
            return
        if isinstance(request, Wait):
            request.condition.waiting.append((self, ticket, request.is_ready))
        if request.seconds is not None:
            kernel.at(kernel.now + max(request.seconds / process.rate, SHORTEST_S), self.resume, ticket, False)

    def interrupt(self, error: BaseException) -> None:
        """Raise in the thread when it next runs, as a signal handler does in the main thread."""
        self.signal = error
        self.process.kernel.soon(self.resume, self.ticket, None)


class Process:
    """A machine's process: its clock is hours off and runs a little fast or slow."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        # A monotonic clock counts from the boot of its machine, so it is never negative.
        self.offset_s = kernel.rng.uniform(0.0, 36000.0)
        self.rate = 1.0 + kernel.rng.uniform(-1e-4, 1e-4)
        self.is_dead = False
        self.is_paused = False
        self.paused_at = 0.0
        self.resumed_at = 0.0
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.connections: list[Connection] = []
        self.trap: Trap | None = None
        self.held_out: list[tuple[Connection, Callable[..., None], tuple[Any, ...]]] | None = None
        """What the network keeps back on the way to the server; None: the way is free."""
        self.held_in: list[tuple[Connection, Callable[..., None], tuple[Any, ...]]] | None = None
        """The same for the way back."""
        self.disturbed_at = float("-inf")
        """When something last happened to this process that may cost it its lease."""

    def clock(self) -> float:
        return self.offset_s + self.kernel.now * self.rate

    def on_thread_death(self, thread: Thread, error: Exception) -> None:
        raise AssertionError(f"{self.name}: {thread.name} died") from error

    def on_wait(self, connection: Connection, key: str) -> None:
        """A read of this process waits at the server, for this key among others."""

    def on_reply(self, connection: Connection, op: Op, reply: Any) -> None:
        """A reply has reached the process."""

    def next_trap(self, thread: Thread) -> Trap | None:
        """The trap that springs at the operation this thread is about to send, if one does."""
        trap = self.trap
        if trap is None or (trap.thread and trap.thread != thread.name):
            return None
        trap.calls_left -= 1
        if trap.calls_left >= 0:
            return None
        self.trap = None
        return trap

    def deliver(self, act: Callable[..., None], *args: Any) -> None:
        """Let something happen in this process, once it runs."""
        if self.is_paused:
            self.backlog.append((act, args))
        elif not self.is_dead:
            act(*args)

    @property
    def is_cut_off(self) -> bool:
        return self.held_out is not None or self.held_in is not None

    def cut_off(self, is_out: bool, is_in: bool) -> None:
        """A silent partition: packets are lost, and sent again by the network when it heals."""
        self.held_out = [] if is_out else None
        self.held_in = [] if is_in else None

    def reconnect(self) -> None:
        """The partition heals. What was held arrives, unless its connection was closed meanwhile."""
        if not self.is_cut_off:
            return
        held_out, held_in = self.held_out or [], self.held_in or []
        self.held_out = self.held_in = None
        self.disturbed_at = self.kernel.now
        for connection, act, args in held_out:
            if not connection.is_broken:
                connection.send_out(act, *args)
        for connection, act, args in held_in:
            if not connection.is_broken:
                connection.send_back(act, *args)

    def pause(self) -> None:
        self.is_paused, self.paused_at = True, self.kernel.now

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused, self.resumed_at = False, self.kernel.now
            self.disturbed_at = self.kernel.now
            backlog, self.backlog = self.backlog, []
            for act, args in backlog:
                self.kernel.soon(self.deliver, act, *args)

    def die(self, loses_sent: bool = False) -> None:
        """End the process. What it sent arrives still, unless its machine went with it."""
        self.is_dead = True
        self.backlog.clear()
        for connection in self.connections:
            connection.close(loses_sent)


@dataclass(slots=True)
class Trap:
    """Springs at one of a process's next store operations, just before it is sent or just after."""

    calls_left: int
    is_after: bool
    spring: Callable[[], None]
    thread: str = ""
    """Only calls of threads of this name count; of all threads, if empty."""


# --- network ----------------------------------------------------------------------------------------

_UNACKNOWLEDGED = (Set, MultiSet, Append)
"""TCPStore's client does not wait for a reply to these."""


@dataclass(slots=True)
class Delays:
    """How long a message takes on the way between one process and the store."""

    typical_s: float
    spike_s: float = 0.0
    """Until `spikes_until`, messages take up to this much longer."""
    spikes_until: float = 0.0

    def draw(self, kernel: Kernel) -> float:
        random = kernel.random
        delay_s = self.typical_s * (0.5 + random())
        if kernel.now < self.spikes_until:
            delay_s += self.spike_s * random()
        return delay_s


class Server:
    """The store's server: performs what arrives, one operation at a time, in the order of arrival."""

    def __init__(self, kernel: Kernel, on_apply: Callable[[Op, Any, Process], None]) -> None:
        self.kernel = kernel
        self.store = SimStore()
        self.on_apply = on_apply
        self.reads_in_one_step = False
        """Save the second half of every blocking read. Only where nothing can come between the two halves."""
        self.is_paused = False
        self.is_dead = False
        self.is_silent = False
        """Its machine went with it: it does not even refuse a connection."""
        self.paused_at = float("inf")
        """Since when it was last paused."""
        self.up_s = 0.0
        """Time spent serving, up to `up_at`."""
        self._up_at = 0.0
        self._backlog: list[tuple[Connection, Callable[..., None], tuple[Any, ...]]] = []

    def uptime(self) -> float:
        """Seconds the server has been serving: what a pause of it takes from everybody does not count."""
        return self.up_s + (0.0 if self.is_paused else self.kernel.now - self._up_at)

    def take(self, connection: Connection, act: Callable[..., None], *args: Any) -> None:
        if self.is_dead or connection.has_lost_sent:
            return
        if self.is_paused:
            self._backlog.append((connection, act, args))
        else:
            act(*args)

    def pause(self) -> None:
        self.up_s = self.uptime()
        if not self.is_paused:
            self.paused_at = self.kernel.now
        self.is_paused = True

    def resume(self) -> None:
        """Serve what has piled up: in order on each connection, in any order between them."""
        self.is_paused, self._up_at = False, self.kernel.now
        backlog, self._backlog = self._backlog, []
        for connection, act, args in backlog:
            self.kernel.at(connection.next_arrival(0.0, THREAD_LAG_S), self.take, connection, act, *args)

    def die(self, is_silent: bool = False) -> None:
        self.is_dead, self.is_silent = True, is_silent


class Connection:
    """One socket to the server, used by one thread: requests arrive in the order in which they were sent."""

    def __init__(self, process: Process, server: Server, delays: Delays, name: str) -> None:
        self.process = process
        self.server = server
        self.delays = delays
        self.name = name
        self.is_broken = self.is_refused = server.is_dead and not server.is_silent
        self.has_lost_sent = False
        self.waits_since = 0.0
        self.serves = ""
        """The incarnation that listens here, if one does."""
        self._kernel = process.kernel
        self._arrives_at = self._replies_at = 0.0
        self._caller: tuple[Thread, int] | None = None
        self.called_at = 0.0
        process.connections.append(self)

    def next_arrival(self, delay_s: float, jitter_s: float = 0.0) -> float:
        kernel = self._kernel
        time = kernel.now + delay_s + (kernel.rng.random() * jitter_s if jitter_s else 0.0)
        # The heap keeps the order of entries of one time, so equal is late enough.
        self._arrives_at = max(self._arrives_at, time)
        return self._arrives_at

    def call(self, thread: Thread, ticket: int, op: Op) -> None:
        self.called_at = self._kernel.now
        trap = None if self.process.trap is None else self.process.next_trap(thread)
        if trap is None:
            self._send(thread, ticket, op)
        elif trap.is_after:
            self._send(thread, ticket, op)
            trap.spring()
        else:
            trap.spring()
            self.process.deliver(self._send, thread, ticket, op)

    def _send(self, thread: Thread, ticket: int, op: Op) -> None:
        kernel = self._kernel
        if self.is_broken:
            error = StoreUnavailable(self.name, "the connection is lost", is_refused=self.is_refused)
            kernel.soon(thread.resume, ticket, None, error)
            return
        kind = type(op)
        if kind in _UNACKNOWLEDGED:
            if isinstance(op, MultiSet) and len(op.keys) > 1 and kernel.random() < TORN:
                self.send_out(self._apply_part, op)
                self.send_out(self.server.store.apply, op, delay_s=kernel.random() * TORN_S)
            else:
                self.send_out(self._apply, op)
            kernel.soon(thread.resume, ticket, None)
            return
        self._caller = (thread, ticket)
        self.send_out(self._wait if kind is Get or kind is MultiGet else self._answer, op)

    def send_out(self, act: Callable[..., Any], op: Op, delay_s: float | None = None) -> None:
        """Send to the server, unless a partition holds it."""
        if self.process.held_out is not None:
            self.process.held_out.append((self, act, (op,)))
            return
        arrives_at = self.next_arrival(self.delays.draw(self._kernel) if delay_s is None else delay_s)
        self._kernel.at(arrives_at, self.server.take, self, act, op)

    def _apply(self, op: Op) -> Any:
        reply = self.server.store.apply(op)
        self.server.on_apply(op, reply, self.process)
        return reply

    def _apply_part(self, op: MultiSet) -> None:
        """The server performs what has come so far, and all of it again when the rest has come."""
        self.server.on_apply(op, None, self.process)
        count = 1 + int(self._kernel.random() * (len(op.keys) - 1))
        self.server.store.apply(MultiSet(op.keys[:count], op.values[:count]))

    def _answer(self, op: Op) -> None:
        self._reply(self._receive, op, self._apply(op))

    def _wait(self, op: Op) -> None:
        """The first half of a blocking read. A connection that is gone waits for nothing."""
        if self.is_broken:
            return
        missing = self.server.store.missing(op)
        if missing:
            self.waits_since = self._kernel.now
            self.process.on_wait(self, missing[0])
            self.server.store.park(self, missing, lambda: self._end_wait(op))
        else:
            self._end_wait(op)

    def _end_wait(self, op: Op) -> None:
        if self.server.reads_in_one_step:
            self._answer(op)
        else:
            self._reply(self._read, op)

    def _read(self, op: Op) -> None:
        """The client heard that its keys exist and asks for their values."""
        if self.is_broken:
            return
        self.send_out(self._answer, op)

    def _reply(self, act: Callable[..., None], *args: Any) -> None:
        if self.process.held_in is not None:
            self.process.held_in.append((self, act, args))
        else:
            self.send_back(act, *args)

    def send_back(self, act: Callable[..., None], *args: Any) -> None:
        kernel = self._kernel
        self._replies_at = max(self._replies_at, kernel.now + self.delays.draw(kernel))
        kernel.at(self._replies_at, self.process.deliver, act, *args)

    def _receive(self, op: Op, reply: Any) -> None:
        if self._caller is not None and not self.is_broken:
            (thread, ticket), self._caller = self._caller, None
            self.process.on_reply(self, op, reply)
            thread.resume(ticket, reply)

    def time_out(self, thread: Thread, ticket: int) -> None:
        """A call has had no reply for too long: its caller closes the connection. What was sent may still arrive."""
        if self._caller == (thread, ticket):
            self.cut(loses_sent=False)

    def cut(self, loses_sent: bool) -> None:
        """Break the connection: its caller gets an error now, later callers at once."""
        self.close(loses_sent)
        if self._caller is not None:
            (thread, ticket), self._caller = self._caller, None
            error = StoreUnavailable(self.name, "the connection is lost")
            self._kernel.soon(self.process.deliver, thread.resume, ticket, None, error)

    def close(self, loses_sent: bool) -> None:
        self.is_broken = True
        self.has_lost_sent = self.has_lost_sent or loses_sent
        self.server.store.unpark(self)
