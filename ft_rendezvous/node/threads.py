"""Drives a node's loop on a real store: a writer and a listener, each with a connection, and one lock.

A third thread keeps the lifeline, if the host of the run listens for one.

The agent's own thread only ever waits on a condition, so Python runs signal handlers at once. All code of the loop runs
under the lock. All store calls are made outside of it. Every connection is a plain socket that another thread can
close, so no thread of a node ever hangs in native code.
"""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.model import Head, Outcome, Verdict
from ft_rendezvous.core.node_step import Drained, WorkerExit
from ft_rendezvous.core.progress import LateRank
from ft_rendezvous.core.stacks import RankStack
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.lifeline import Lifeline
from ft_rendezvous.protocol.lifeline_keeper import LifelineKeeper
from ft_rendezvous.protocol.node_loop import GOODBYE_TIMEOUT_S, NodeLoop
from ft_rendezvous.protocol.node_policy import ends_well
from ft_rendezvous.protocol.ops import (
    AwaitHangUp,
    Connect,
    Hail,
    LifelineRoutine,
    Move,
    Op,
    Rest,
    Routine,
    WriterRoutine,
)
from ft_rendezvous.protocol.participant import Participant, Place

T = TypeVar("T")


class NodeConnection(Protocol):
    """One connection to the run's store. Another thread may close it, even while a call blocks."""

    def perform(self, op: Op) -> Any: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Connections:
    """The writer's connection to the run's store, the head that was read over it, and one for the next listener."""

    writer: NodeConnection
    listener: NodeConnection
    head: Head


class Dialer(Protocol):
    """Opens connections to the run's store, one attempt a call. Raises StoreUnavailable."""

    def dial(self) -> Connections: ...
    def dial_listener(self) -> NodeConnection: ...
    def dial_lifeline(self, incarnation: str) -> Lifeline: ...


@dataclass(slots=True, eq=False)
class _Listener:
    """A thread that listens for one incarnation, once it knows what to listen for."""

    connection: NodeConnection | None
    watch: Routine[None] | None = None
    thread: threading.Thread = field(init=False)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class Link:
    """A node's link to its run: its participant, and the threads that keep it alive."""

    def __init__(
        self,
        connections: Connections,
        dialer: Dialer,
        participant: Participant,
        *,
        beat_s: float,
        join_s: float,
        endpoint: str,
        health_check_s: float = 0.0,
        lifeline_grace_s: float = 0.0,
    ) -> None:
        """Start the threads. They use `connections` until these break, and then ask the dialer for new ones."""
        self._writer_connection = connections.writer
        self._dialer = dialer
        self._endpoint = endpoint
        self._lock = threading.RLock()
        # Each thread waits for its own condition: a wake-up in vain costs as much as one that is needed.
        self._changed, self._ended, self._called, self._joined = (threading.Condition(self._lock) for _ in range(4))
        self._loop = NodeLoop(
            participant,
            beat_s=beat_s,
            join_s=join_s,
            endpoint=endpoint,
            on_change=self._changed.notify_all,
            on_end=self._ended.notify_all,
            on_listen=self._listen_anew,
            logs_waits=True,
            health_check_s=health_check_s,
            lifeline_grace_s=lifeline_grace_s,
            describe_agent=self._describe_agent,
        )
        self._agent_thread = threading.get_ident()
        self._participant = participant
        with self._lock:
            # Before it is needed: to start a thread takes longer than to arrive.
            self._listener = self._start_listener(connections.listener)
        self._writer = threading.Thread(target=self._drive_writer, name="ft-writer", daemon=True)
        self._writer.start()
        self._lifeline: Lifeline | None = None
        self._on_lifeline: Callable[[int], None] = lambda _fd: None
        if connections.head.lifeline_port:
            threading.Thread(target=self._keep_lifeline, name="ft-lifeline", daemon=True).start()

    # --- what the agent asks without any operation ---------------------------------------------------

    @property
    def is_broken(self) -> bool:
        return self._loop.broken is not None

    @property
    def verdict(self) -> Verdict | None:
        with self._lock:
            return self._loop.verdict

    @property
    def has_joined(self) -> bool:
        """Whether the node has arrived and knows how the run stands."""
        with self._lock:
            return self._participant.view is not None

    @property
    def is_draining(self) -> bool:
        """Whether the run knows that this node gives up its place."""
        with self._lock:
            return self._participant.is_draining

    @property
    def drain_reason(self) -> str:
        """Why nodes were last asked to give up their places; empty if they were not."""
        with self._lock:
            view = self._participant.view
            return view.called.reason if view is not None and view.called is not None else ""

    @property
    def has_reported(self) -> bool:
        """Whether the exit of a worker in the last place is known."""
        with self._lock:
            return self._participant.worker_exit is not None

    def tick(self, cycle_id: int) -> None:
        """The agent's own thread looks after its workers of this cycle: it does not hang."""
        with self._lock:
            self._loop.tick(cycle_id)

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop. No store call, no waiting."""
        with self._lock:
            return self._loop.must_stop(cycle_id)

    def why_stop(self) -> str:
        with self._lock:
            return self._loop.why_stop()

    def ends_well(self, verdict: Verdict) -> bool:
        """Whether this node ends well with such a verdict."""
        with self._lock:
            return ends_well(verdict, self._participant.is_going)

    def agent_key(self, cycle_id: int, key: str) -> str:
        """Where the elastic agent's own key lives."""
        return self._participant.keys.agent(cycle_id, key)

    def on_drain(self, act: Callable[[], None]) -> None:
        """Call `act` when the coordinator asks this node to give up its place."""
        with self._lock:
            self._participant.on_drain = act

    def on_group_ended(self, act: Callable[[int, str], None]) -> None:
        """Call `act` with a group and the reason when that group ends, and this node trains in another one."""
        with self._lock:
            self._participant.on_group_ended = act

    def on_inquiry(self, act: Callable[[int, int], None]) -> None:
        """Call `act` with a cycle and an event when the coordinator asks where the workers of that cycle are."""
        with self._lock:
            self._participant.on_inquiry = act

    def show_progress(self, read: Callable[[], WorkersProgress | None]) -> None:
        """Let every beat carry what `read` returns. It must not wait."""
        with self._lock:
            self._participant.read_progress = read

    def hangs(self, cycle_id: int) -> bool:
        """Whether this cycle has ended because its workers hang."""
        with self._lock:
            return self._participant.has_hung(cycle_id)

    def on_lifeline(self, act: Callable[[int], None]) -> None:
        """Call `act` with the descriptor of every lifeline, that of the one that is there first."""
        with self._lock:
            self._on_lifeline = act
            if self._lifeline is not None:
                act(self._lifeline.fileno())

    # --- what the agent waits for --------------------------------------------------------------------

    def next_place(self) -> Place | Verdict | Drained:
        """Take part until this node has a place, may go, or the run is closed."""
        return self.run(self._participant.next_place())

    def finish(self, cycle_id: int) -> None:
        """Enter the exit barrier, once."""
        self.run(self._participant.finish(cycle_id))

    def await_verdict(self) -> Verdict:
        """Wait for the run's end without taking part any more."""
        return self.run(self._participant.await_verdict())

    def await_end(self, cycle_id: int) -> Verdict:
        """Enter the exit barrier if this node has not, and wait for the run's end."""
        return self.run(self._participant.await_end(cycle_id))

    def withdraw(self, reason: str) -> None:
        """Say that this node is not fit to train."""
        self.run(self._participant.withdraw(reason))

    def perform(self, op: Op) -> Any:
        """Have one operation performed on the run's store."""

        def move() -> Move[Any]:
            return (yield op)

        return self.run(move())

    def run(self, routine: Routine[T], timeout_s: float | None = None) -> T:
        """Let the writer carry a routine to its end, and wait for it: see `NodeLoop.run`."""
        self._agent_thread = threading.get_ident()
        result: T = self._drive(self._loop.run(routine, timeout_s), self._ended, None)
        return result

    def leave(self, outcome: Outcome, reason: str) -> None:
        """Say goodbye and end the threads. Never raises: a store that is gone needs no goodbye."""
        try:
            self._drive(self._loop.leave(outcome, reason), self._ended, None)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the threads without a word."""
        with self._lock:
            self._loop.stop()
            self._writer_connection.close()
            self._listener.close()
            self._called.notify_all()
            self._joined.notify_all()
            if self._lifeline is not None:
                self._lifeline.close(says_goodbye=self._participant.has_left)
        for thread in (self._writer, self._listener.thread):
            thread.join(GOODBYE_TIMEOUT_S)

    # --- what the agent says without waiting ---------------------------------------------------------

    def report_exit(self, cycle_id: int, end: WorkerExit) -> None:
        """Say how the first worker of this node failed."""
        self._post(lambda participant: participant.report_exit(cycle_id, end))

    def ask_restart(self, cycle_id: int, reason: str) -> None:
        """Ask the coordinator for the cycle after this one."""
        self._post(lambda participant: participant.ask_restart(cycle_id, reason))

    def ask_drain(self, reason: str) -> None:
        """Ask the coordinator to give this node's place to another node."""
        self._post(lambda participant: participant.ask_drain(reason))

    def tell_checkpoint(self, cycle_id: int) -> None:
        """Say that a checkpoint was written."""
        self._post(lambda participant: participant.tell_checkpoint(cycle_id))

    def report_update(self, cycle_id: int, note: UpdateNote) -> None:
        """Say that workers of a cycle have made an update. It is passed on with one of the next beats."""
        with self._lock:
            self._participant.note_update(cycle_id, note)

    def tell_late(self, cycle_id: int, late: LateRank, after_s: float) -> None:
        """Say that a rank of this node is late."""
        self._post(lambda participant: participant.tell_late(cycle_id, late, after_s))

    def tell_stacks(
        self,
        cycle_id: int,
        inquiry: int,
        stacks: Sequence[RankStack],
        paused: Sequence[tuple[int, str]],
        moving: Sequence[int],
    ) -> None:
        """Answer an inquiry: where the workers of this node are."""
        self._post(lambda participant: participant.tell_stacks(cycle_id, inquiry, stacks, paused, moving))

    def _post(self, make: Callable[[Participant], Move[None]]) -> None:
        with self._lock:
            self._loop.post(make(self._participant))

    # --- threads ------------------------------------------------------------------------------------

    def _describe_agent(self) -> str:
        frame = sys._current_frames().get(self._agent_thread)
        return "the thread is gone" if frame is None else "".join(traceback.format_stack(frame))

    def _drive_writer(self) -> None:
        self._drive(self._loop.write(), self._changed, self._perform_for_writer)

    def _perform_for_writer(self, request: Op | Connect) -> Any:
        return self._reconnect() if isinstance(request, Connect) else self._writer_connection.perform(request)

    def _keep_lifeline(self) -> None:
        self._drive(LifelineKeeper(self._loop).keep(), self._joined, self._perform_for_lifeline)

    def _perform_for_lifeline(self, request: Hail | AwaitHangUp) -> None:
        if isinstance(request, AwaitHangUp):
            assert self._lifeline is not None
            self._lifeline.await_end()
            with self._lock:
                self._lifeline.release()
                self._lifeline = None
            return
        lifeline = self._dialer.dial_lifeline(request.incarnation)
        with self._lock:
            self._lifeline = lifeline
            if self._loop.is_over or request.incarnation != self._participant.lifeline_name:
                lifeline.close(says_goodbye=self._participant.has_left)
            else:
                self._on_lifeline(lifeline.fileno())

    def _drive(
        self,
        routine: Routine[Any] | WriterRoutine[Any] | LifelineRoutine[Any],
        changed: threading.Condition,
        perform: Callable[[Any], Any] | None,
    ) -> Any:
        """Run a routine to its end: its code under the lock, its store calls outside, its rests on the condition."""
        resume: Callable[[Any], Any] = routine.send
        value: Any = None
        try:
            while True:
                with self._lock:
                    request = resume(value)
                    while isinstance(request, Rest):
                        changed.wait(None if request.seconds == math.inf else request.seconds)
                        request = routine.send(None)
                assert perform is not None, "the agent's thread makes no store call"
                try:
                    resume, value = routine.send, perform(request)
                except Exception as error:  # The routine says what it means.
                    resume, value = routine.throw, error
        except StopIteration as stop:
            return stop.value
        finally:
            # A signal may raise in any wait. The routine must clean up now, not when its frame is collected.
            with self._lock:
                routine.close()

    def _reconnect(self) -> Head:
        """One attempt to replace both connections. The old ones are closed first: no thread must wait on them.

        Raises StoreUnavailable.
        """
        with self._lock:
            self._writer_connection.close()
            self._listener.close()
        connections = self._dialer.dial()
        with self._lock:
            try:
                self._listener = self._start_listener(connections.listener)
            except StoreUnavailable:
                connections.writer.close()
                connections.listener.close()
                raise
            self._writer_connection = connections.writer
            if self._loop.is_over:
                connections.writer.close()
                connections.listener.close()
            self._called.notify_all()
        return connections.head

    def _listen_anew(self) -> None:
        """Called by the loop, under the lock, when there is something to listen for."""
        self._renew_lifeline()
        if self._listener.watch is not None:
            self._listener.close()
            try:
                self._listener = self._start_listener(None)
            except StoreUnavailable as error:
                self._loop.lose_listener(error)
                return
        self._listener.watch = self._loop.watch()
        self._called.notify_all()

    def _renew_lifeline(self) -> None:
        """Let the lifeline be that of the current incarnation."""
        if self._lifeline is not None and self._lifeline.incarnation != self._participant.incarnation:
            self._lifeline.close(says_goodbye=False)
        self._joined.notify_all()

    def _start_listener(self, connection: NodeConnection | None) -> _Listener:
        """Raises StoreUnavailable if the machine has no thread left. The next attempt to connect may find one."""
        listener = _Listener(connection)
        listener.thread = threading.Thread(target=self._listen, args=(listener,), name="ft-listener", daemon=True)
        try:
            listener.thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(self._endpoint, "this node has no thread left to listen to it") from error
        return listener

    def _listen(self, listener: _Listener) -> None:
        """Serve one listener. It opens its own connection unless the dialer has left one for it."""
        with self._lock:
            while listener.watch is None and listener is self._listener and not self._loop.is_over:
                self._called.wait()
        if listener.watch is None:
            return
        try:
            connection = listener.connection or self._dialer.dial_listener()
        except StoreUnavailable as error:
            with self._lock:
                if listener is self._listener:
                    self._loop.lose_listener(error)
            return
        with self._lock:
            listener.connection = connection
            is_obsolete = listener is not self._listener or self._loop.is_over
        if not is_obsolete:
            routine = self._loop.listen(listener.watch, lambda: listener is self._listener)
            self._drive(routine, self._changed, connection.perform)
        if listener is not self._listener:
            connection.close()
