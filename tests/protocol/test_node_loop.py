"""A node's loop, driven one step at a time: no threads, no store, and a clock that stands still."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ft_rendezvous.core.model import Closed, FirstCycle, Head, NodeInfo, Opened, Outcome, Verdict, VerdictKind, View
from ft_rendezvous.errors import AgentWedged, StoreUnavailable
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.node_loop import GOODBYE_TIMEOUT_S, NodeLoop
from ft_rendezvous.protocol.node_policy import WEDGED_TIMEOUT_S
from ft_rendezvous.protocol.ops import (
    CHANGED,
    Add,
    Append,
    Check,
    CompareSet,
    Connect,
    Get,
    InDoubt,
    Move,
    Op,
    Rest,
    Routine,
    Set,
)
from ft_rendezvous.protocol.participant import Participant
from tests.sim.store import SimStore

EPOCH, INCARNATION = "e" * 16, "0" * 16
LEASE_S, BEAT_S, JOIN_S = 10.0, 1.0, 60.0
WEDGED_BEATS = round(WEDGED_TIMEOUT_S / BEAT_S)
LOST = StoreUnavailable("store", "the connection is lost")
REFUSED = StoreUnavailable("store", "nothing listens there", is_refused=True)
OPENED = Opened(no=1, cycle_id=1, shards=1, ring_at=1, channels=1, why=FirstCycle(), log_id=1)


def head_of(view: View, epoch: str = EPOCH) -> Head:
    return Head(run_id="r", epoch=epoch, settings={}, view=view)


HEAD = head_of(View(no=1, opened=OPENED))


@dataclass
class Driver:
    """Plays the threads of one node."""

    now: float = 100.0
    changes: int = 0
    ends: int = 0
    listeners: int = 0
    store: SimStore = field(default_factory=SimStore)
    waiting: Routine[None] | None = None
    """What the agent waits for, if a test lets it."""

    def __post_init__(self) -> None:
        self.participant = Participant(
            epoch=EPOCH,
            node=NodeInfo(addr="here", pid=1),
            lease_s=LEASE_S,
            clock=lambda: self.now,
            new_incarnation=lambda: INCARNATION,
            hold_bootstrap=lambda *_: 1,
        )
        self.loop = NodeLoop(
            self.participant,
            beat_s=BEAT_S,
            join_s=JOIN_S,
            endpoint="store",
            on_change=lambda: self._count("changes"),
            on_end=lambda: self._count("ends"),
            on_listen=lambda: self._count("listeners"),
            logs_waits=False,
            describe_agent=lambda: "in torch's stop",
        )
        self.writer = self.loop.write()

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def join(self) -> None:
        """Put the node into the first cycle, without a word to any store."""
        self.participant.incarnation, self.participant.view = INCARNATION, View(no=1, opened=OPENED)
        self.participant.pulse.alive_until = self.now + LEASE_S

    def rest(self, first: Any = None) -> list[Op | Connect]:
        """Perform what the writer asks for until it rests. Returns what that was."""
        asked: list[Op | Connect] = []
        step = self.writer.send(None) if first is None else first
        while not isinstance(step, Rest):
            asked.append(step)
            step = self.writer.send(HEAD if isinstance(step, Connect) else self.store.perform(step))
        return asked

    def fail(self, error: Exception = LOST) -> Any:
        """What the writer asks for when its last call failed."""
        return self.writer.throw(error)


@pytest.fixture
def node() -> Driver:
    node = Driver()
    node.rest()
    return node


def count() -> Move[int]:
    counted: int = yield Add("n", 1)
    return counted


def append(record: bytes) -> Move[None]:
    yield Append("log", record)


def wait() -> Routine[None]:
    while True:
        yield CHANGED


def start(waiting: Routine[Any]) -> Rest:
    """Begin to wait, as an agent does."""
    step = next(waiting)
    assert isinstance(step, Rest)
    return step


def result(waiting: Routine[Any]) -> Any:
    """What an agent gets for its wait."""
    with pytest.raises(StopIteration) as ended:
        next(waiting)
    return ended.value.value


# --- jobs -------------------------------------------------------------------------------------------


def test_a_job_is_carried_and_the_agent_gets_its_result(node: Driver) -> None:
    waiting = node.loop.run(count())
    assert not start(waiting).until()
    assert node.rest() == [Add("n", 1)]
    assert node.ends == 1
    assert result(waiting) == 1


def test_a_job_that_rests_goes_on_after_a_change_and_not_before(node: Driver) -> None:
    def routine() -> Routine[int]:
        yield CHANGED
        counted: int = yield Add("n", 1)
        return counted

    waiting = node.loop.run(routine())
    start(waiting)
    assert node.rest() == []
    assert node.rest() == []
    node.loop.change()
    assert node.rest() == [Add("n", 1)]
    assert result(waiting) == 1


def test_a_later_job_takes_the_place_of_one_that_waits(node: Driver) -> None:
    first, second = node.loop.run(wait()), node.loop.run(count())
    start(first)
    node.rest()
    start(second)
    node.rest()
    assert result(second) == 1
    with pytest.raises(StoreUnavailable, match="leaving"):
        next(first)


def test_posts_go_before_jobs_in_their_order(node: Driver) -> None:
    waiting = node.loop.run(count())
    start(waiting)
    node.loop.post(append(b"a"))
    node.loop.post(append(b"b"))
    assert node.rest() == [Append("log", b"a"), Append("log", b"b"), Add("n", 1)]


def test_the_error_of_a_post_is_logged_and_the_next_post_is_carried(
    node: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Move[None]:
        yield Append("log", b"a")
        raise OSError("no space")

    caplog.set_level(logging.INFO, "ft_rendezvous")
    node.loop.post(fail())
    node.loop.post(append(b"b"))
    assert node.rest() == [Append("log", b"a"), Append("log", b"b")]
    assert "could not tell the coordinator: no space" in caplog.text
    assert not node.loop.is_over


def test_the_error_of_a_job_reaches_the_agent_and_ends_nothing_else(node: Driver) -> None:
    def fail() -> Move[None]:
        yield Append("log", b"a")
        raise OSError("no space")

    waiting = node.loop.run(fail())
    start(waiting)
    node.rest()
    with pytest.raises(OSError, match="no space"):
        next(waiting)
    assert not node.loop.is_over


def test_a_wait_with_a_timeout_ends_without_an_answer(node: Driver) -> None:
    waiting = node.loop.run(count(), timeout_s=1.5)
    assert start(waiting).seconds == 1.0
    node.now += 1.0
    assert start(waiting).seconds == 0.5
    node.now += 0.5
    with pytest.raises(StoreUnavailable, match=r"no answer for 1\.5 s"):
        next(waiting)
    assert node.rest() == [], "the agent does not wait for it any more"


def test_a_wait_that_is_interrupted_leaves_no_job_behind(node: Driver) -> None:
    """Torch's signal handlers raise in the agent's wait."""
    waiting = node.loop.run(count())
    start(waiting)
    with pytest.raises(KeyboardInterrupt):
        waiting.throw(KeyboardInterrupt)
    assert node.rest() == []


def test_a_node_beats_once_per_beat(node: Driver) -> None:
    node.join()
    beats = []
    for _ in range(8):
        beats.append(len(node.rest()))
        node.now += BEAT_S / 2
    assert beats == [0, 0, 1, 0, 1, 0, 1, 0]


# --- broken connections -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", [Append("log", b"a"), Set("k", b"v"), Check(["k"]), CompareSet("k", b"", b"1")], ids=repr
)
def test_an_operation_is_performed_again_over_the_new_connection(node: Driver, op: Op) -> None:
    def move() -> Move[Any]:
        return (yield op)

    waiting = node.loop.run(move())
    start(waiting)
    assert next(node.writer) == op
    assert node.fail() == Connect()
    assert node.writer.send(HEAD) == op
    node.rest(node.writer.send("reply"))
    assert result(waiting) == "reply"


def test_a_count_is_in_doubt_after_a_break_and_its_own_job_hears_of_it(node: Driver) -> None:
    heard: list[str] = []

    def counting() -> Move[int]:
        try:
            yield Add("n", 1)
        except InDoubt as error:
            heard.append(str(error))
        counted: int = yield Add("n", 10)
        return counted

    waiting = node.loop.run(counting())
    start(waiting)
    node.loop.post(append(b"a"))
    assert next(node.writer) == Append("log", b"a")
    assert node.writer.send(None) == Add("n", 1)
    assert node.fail() == Connect()
    assert node.writer.send(HEAD) == Append("log", b"a"), "no answer has confirmed it"
    assert heard == []
    assert node.writer.send(None) == Add("n", 10)
    assert heard == ["store store: the connection broke during a count"]
    node.rest(node.writer.send(11))
    assert result(waiting) == 11


def test_a_move_that_cannot_doubt_fails_and_the_writer_goes_on(node: Driver) -> None:
    waiting = node.loop.run(count())
    start(waiting)
    next(node.writer)
    node.fail()
    assert isinstance(node.writer.send(HEAD), Rest)
    with pytest.raises(InDoubt):
        next(waiting)
    assert not node.loop.is_over


def test_writes_without_an_answer_are_written_again_after_a_break(node: Driver) -> None:
    """The server does not acknowledge them. What it had not read when the connection broke is lost."""

    def move() -> Move[None]:
        yield Append("log", b"a")
        yield Set("bell", b"1")

    node.loop.post(move())
    assert node.rest() == [Append("log", b"a"), Set("bell", b"1")]
    node.loop.lose_listener(LOST)
    assert node.rest() == [Connect(), Append("log", b"a"), Set("bell", b"1")]


def test_an_answer_confirms_all_writes_before_it(node: Driver) -> None:
    """The server takes the operations of one connection in their order."""
    node.loop.post(append(b"a"))
    assert node.rest() == [Append("log", b"a")]
    waiting = node.loop.run(count())
    start(waiting)
    assert node.rest() == [Add("n", 1)]
    node.loop.lose_listener(LOST)
    assert node.rest() == [Connect()]


def test_a_break_while_writes_are_repeated_repeats_them_all(node: Driver) -> None:
    node.loop.post(append(b"a"))
    node.loop.post(append(b"b"))
    node.rest()
    node.loop.lose_listener(LOST)
    assert next(node.writer) == Connect()
    assert node.writer.send(HEAD) == Append("log", b"a")
    assert node.writer.send(None) == Append("log", b"b")
    step = node.fail()
    assert isinstance(step, Rest)
    assert node.rest() == [Connect(), Append("log", b"a"), Append("log", b"b")]


def test_a_store_that_answers_is_not_given_up_however_often_connections_break(node: Driver) -> None:
    node.loop.post(append(b"a"))
    node.rest()
    lost_at = node.now
    node.loop.lose_listener(LOST)
    while node.now < lost_at + 2 * JOIN_S:
        assert next(node.writer) == Connect()
        assert node.writer.send(HEAD) == Append("log", b"a")
        rest = node.fail()
        assert isinstance(rest, Rest)
        node.now += rest.seconds
    assert node.rest() == [Connect(), Append("log", b"a")]
    assert not node.loop.is_over


def test_nothing_is_written_to_the_store_of_another_run(node: Driver) -> None:
    waiting = node.loop.run(append(b"a"))
    start(waiting)
    node.rest()
    node.loop.lose_listener(LOST)
    assert next(node.writer) == Connect()
    with pytest.raises(StopIteration):
        node.writer.send(head_of(HEAD.view, epoch="f" * 16))
    assert "the store is a new one" in str(node.loop.broken)
    with pytest.raises(StopIteration):
        next(waiting)  # It was carried before.


def test_a_beat_in_flight_is_performed_once_in_effect(node: Driver) -> None:
    node.join()
    node.now += BEAT_S
    beat = next(node.writer)
    assert isinstance(beat, CompareSet)
    node.store.perform(beat)  # The store performs it, and the answer is lost.
    assert node.fail() == Connect()
    again = node.writer.send(HEAD)
    assert again == beat
    node.rest(node.writer.send(node.store.perform(again)))
    assert not node.participant.pulse.is_fenced
    assert node.participant.pulse.counter == int(beat.desired)


def test_a_new_connection_gets_a_new_listener(node: Driver) -> None:
    node.join()
    node.loop.lose_listener(LOST)
    assert node.listeners == 0
    connect, beat = node.rest()
    assert (connect, type(beat)) == (Connect(), CompareSet), "a beat follows at once: nobody knows how long it took"
    assert node.listeners == 1


def test_a_node_that_has_nothing_to_hear_gets_no_listener(node: Driver) -> None:
    node.loop.lose_listener(LOST)
    assert node.rest() == [Connect()]
    assert node.listeners == 0


def test_attempts_to_connect_come_slower_up_to_a_beat(node: Driver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ft_rendezvous")
    node.loop.lose_listener(LOST)
    pauses: list[float] = []
    step = next(node.writer)
    for _ in range(9):
        assert step == Connect()
        rest = node.fail()
        assert isinstance(rest, Rest)
        assert not rest.until(), "a change does not end the pause"
        pauses.append(rest.seconds)
        node.now += rest.seconds
        step = next(node.writer)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    node.writer.send(HEAD)
    assert caplog.text.count("out of touch") == 1
    assert "in touch with the store again after 4.3 s" in caplog.text


@pytest.mark.parametrize(("error", "limit_s"), [(REFUSED, LEASE_S), (LOST, JOIN_S)], ids=["refused", "silent"])
def test_a_store_that_stays_away_breaks_the_loop(node: Driver, error: StoreUnavailable, limit_s: float) -> None:
    waiting = node.loop.run(wait())
    start(waiting)
    node.rest()
    lost_at = node.now
    node.loop.lose_listener(LOST)
    next(node.writer)
    try:
        while node.now < lost_at + 2 * limit_s:
            rest = node.fail(error)
            assert isinstance(rest, Rest)
            node.now += rest.seconds
            next(node.writer)
    except StopIteration:
        pass
    assert limit_s <= node.now - lost_at <= limit_s + BEAT_S
    assert isinstance(node.loop.broken, StoreUnavailable)
    assert error.fact in str(node.loop.broken)
    assert node.loop.must_stop(1)
    with pytest.raises(StoreUnavailable, match=error.fact):
        next(waiting)


def test_workers_stop_after_a_lease_without_the_store_although_the_loop_goes_on(node: Driver) -> None:
    node.join()
    node.rest()
    node.loop.lose_listener(LOST)
    next(node.writer)
    assert not node.loop.must_stop(1)
    node.now += LEASE_S
    node.fail()
    assert node.loop.must_stop(1)
    node.rest()
    node.now += BEAT_S
    node.rest()
    assert not node.loop.is_over
    assert node.loop.must_stop(1), "for this cycle it stays so"
    assert not node.loop.must_stop(2)


def test_an_error_of_ours_ends_the_writer_and_the_agent_learns_of_it(node: Driver) -> None:
    waiting = node.loop.run(count())
    start(waiting)
    next(node.writer)
    with pytest.raises(StopIteration):
        node.fail(AssertionError("a bug"))
    assert node.loop.must_stop(1)
    with pytest.raises(AssertionError, match="a bug"):
        next(waiting)


# --- the listener -----------------------------------------------------------------------------------


@dataclass
class Listener:
    node: Driver
    is_current: bool = True

    def __post_init__(self) -> None:
        self.routine = self.node.loop.listen(self.node.loop.watch(), lambda: self.is_current)

    def hear(self, event: Any) -> Any:
        return self.routine.send(codec.encode(event))


@pytest.fixture
def listener(node: Driver) -> Listener:
    node.join()
    listener = Listener(node)
    asked = next(listener.routine)
    assert isinstance(asked, Get)
    return listener


NEXT = Opened(no=2, cycle_id=2, shards=1, ring_at=1, channels=1, why=FirstCycle(), log_id=2)
VERDICT = Verdict(VerdictKind.SUCCEEDED)


def test_the_close_is_heard_last(node: Driver, listener: Listener) -> None:
    waiting = node.loop.run(node.participant.await_verdict())
    start(waiting)
    node.rest()
    with pytest.raises(StopIteration):
        listener.hear(Closed(no=2, verdict=VERDICT))
    node.rest()
    assert result(waiting) == VERDICT


def test_an_event_ends_the_job_that_waits_for_it_without_the_writer(node: Driver, listener: Listener) -> None:
    def routine() -> Routine[str]:
        yield CHANGED
        return "heard"

    waiting = node.loop.run(routine())
    start(waiting)
    node.rest()
    assert isinstance(listener.hear(NEXT), Get)
    assert result(waiting) == "heard"


def test_a_job_that_needs_an_operation_after_an_event_gets_it_from_the_writer(node: Driver, listener: Listener) -> None:
    def routine() -> Routine[int]:
        yield CHANGED
        counted: int = yield Add("n", 1)
        return counted

    waiting = node.loop.run(routine())
    start(waiting)
    node.rest()
    assert isinstance(listener.hear(NEXT), Get)
    assert node.rest() == [Add("n", 1)]
    assert result(waiting) == 1


def test_a_listener_that_is_lost_has_both_connections_replaced(node: Driver, listener: Listener) -> None:
    node.rest()
    with pytest.raises(StopIteration):
        listener.routine.throw(LOST)
    assert not node.loop.is_over
    assert Connect() in node.rest()
    assert node.listeners == 1


def test_a_listener_that_was_replaced_is_not_missed(node: Driver, listener: Listener) -> None:
    node.rest()
    listener.is_current = False
    with pytest.raises(StopIteration):
        listener.routine.throw(LOST)
    assert node.rest() == []


@pytest.mark.parametrize("is_current", [True, False])
def test_an_error_of_ours_in_the_current_listener_ends_the_loop(
    node: Driver, listener: Listener, is_current: bool
) -> None:
    """A node that hears nothing would train on in a world that is over."""
    listener.is_current = is_current
    with pytest.raises(StopIteration):
        listener.routine.throw(AssertionError("event 3 after 1"))
    assert node.loop.is_over is is_current


# --- the end ----------------------------------------------------------------------------------------


def test_breaking_off_ends_every_wait_with_the_reason_and_a_second_reason_changes_nothing(node: Driver) -> None:
    waiting = node.loop.run(wait())
    start(waiting)
    node.loop.break_off(LOST)
    node.loop.break_off(REFUSED)
    assert node.loop.broken is LOST
    assert node.loop.why_stop() == f"the connection to the store is lost: {LOST}"
    with pytest.raises(StoreUnavailable, match="the connection is lost"):
        next(waiting)
    with pytest.raises(StopIteration):
        next(node.writer)


def test_leaving_says_goodbye_and_stops(node: Driver) -> None:
    node.join()
    node.rest()
    leaving = node.loop.leave(Outcome.SUCCEEDED, "")
    start(leaving)
    (goodbye, bell) = node.rest()
    assert isinstance(goodbye, Append)
    assert b'"left"' in goodbye.value, "no run has ended, and no worker"
    assert isinstance(bell, Set)
    assert result(leaving) is None
    assert node.loop.is_stopped
    with pytest.raises(StopIteration):
        next(node.writer)


def test_leaving_waits_no_longer_than_a_goodbye_is_worth(node: Driver) -> None:
    node.join()
    leaving = node.loop.leave(Outcome.LEFT, "")
    start(leaving)
    node.now += GOODBYE_TIMEOUT_S
    assert result(leaving) is None
    assert node.loop.is_stopped


def lose(node: Driver) -> None:
    node.loop.lose_listener(LOST)
    next(node.writer)


def hang(node: Driver) -> None:
    node.loop.post(append(b"a"))
    next(node.writer)


@pytest.mark.parametrize("befall", [lose, hang, lambda node: node.loop.break_off(LOST), lambda node: node.loop.stop()])
def test_leaving_a_store_that_does_not_answer_takes_no_time(node: Driver, befall: Callable[[Driver], None]) -> None:
    node.join()
    befall(node)
    node.now += GOODBYE_TIMEOUT_S + 0.01
    assert result(node.loop.leave(Outcome.LEFT, "")) is None


def test_a_node_that_stops_while_it_connects_ends_its_writer(node: Driver) -> None:
    node.loop.lose_listener(LOST)
    next(node.writer)
    node.loop.stop()
    rest = node.fail()
    assert isinstance(rest, Rest)
    assert rest.until()
    with pytest.raises(StopIteration):
        next(node.writer)
    assert node.loop.broken is None, "the node stopped it"


# --- an agent that does not come back ---------------------------------------------------------------


@pytest.fixture
def outdated(node: Driver) -> Driver:
    """A node whose workers are of cycle 1, which an event has ended."""
    node.join()
    node.participant.progress.trained_in = 1
    opened = Opened(no=2, cycle_id=2, shards=1, ring_at=1, channels=1, why=FirstCycle(), log_id=2)
    node.participant.view = View(no=2, opened=opened)
    return node


def beat_on(node: Driver, count: int) -> list[Op | Connect]:
    """Let so many beats pass. Returns what the writer did beside beating."""
    asked: list[Op | Connect] = []
    for _ in range(count):
        node.now += BEAT_S
        asked += [op for op in node.rest() if not isinstance(op, CompareSet)]
    return asked


def wedge(node: Driver) -> list[Op]:
    """One beat more. Returns what the writer did before its end."""
    node.now += BEAT_S
    asked: list[Op] = []
    step = next(node.writer)
    with suppress(StopIteration):
        while not isinstance(step, Rest | Connect):
            asked.append(step)
            step = node.writer.send(node.store.perform(step))
    return asked


def test_a_node_whose_agent_does_not_come_back_says_goodbye(outdated: Driver, caplog: pytest.LogCaptureFixture) -> None:
    assert beat_on(outdated, WEDGED_BEATS - 1) == []
    _, goodbye, _ = wedge(outdated)
    assert isinstance(goodbye, Append)
    assert b'"left"' in goodbye.value
    assert isinstance(outdated.loop.broken, AgentWedged)
    assert "did not stop its workers of cycle 1 for 120 s" in caplog.text
    assert "in torch's stop" in caplog.text
    with pytest.raises(AgentWedged):
        next(outdated.loop.run(wait()))


def come_back(node: Driver) -> None:
    node.waiting = node.loop.run(wait())
    start(node.waiting)


def end_run(node: Driver) -> None:
    assert node.participant.view is not None
    closed = Closed(no=3, verdict=Verdict(VerdictKind.FAILED))
    node.participant.view = msgspec.structs.replace(node.participant.view, no=3, closed=closed)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(lambda node: node.loop.must_stop(1), id="it asks"),
        pytest.param(come_back, id="it waits for a place"),
        pytest.param(end_run, id="the run is over"),
        pytest.param(lambda node: setattr(node.participant.progress, "trained_in", 2), id="it has a new place"),
    ],
)
def test_a_node_whose_agent_comes_back_stays(outdated: Driver, event: Callable[[Driver], None]) -> None:
    beat_on(outdated, WEDGED_BEATS - 1)
    event(outdated)
    beat_on(outdated, WEDGED_BEATS - 1)
    assert outdated.loop.broken is None


def test_time_in_which_the_node_stood_still_is_not_counted(outdated: Driver) -> None:
    """A process that was stopped for long finds its lease lost, and joins again."""
    beat_on(outdated, 2)
    outdated.now += 10 * WEDGED_TIMEOUT_S
    beat_on(outdated, 2)
    assert outdated.loop.broken is None


@pytest.fixture
def training(node: Driver) -> Driver:
    """A node whose workers train in cycle 1, and whose agent looks after them."""
    node.join()
    node.participant.progress.trained_in = 1
    for _ in range(3):
        node.loop.tick(1)
        beat_on(node, 1)
    return node


def test_a_node_whose_agent_does_not_look_after_its_workers_says_goodbye(
    training: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    training.loop.tick(1)
    assert beat_on(training, WEDGED_BEATS - 1) == []
    _, goodbye, _ = wedge(training)
    assert isinstance(goodbye, Append)
    assert b'"left"' in goodbye.value
    assert isinstance(training.loop.broken, AgentWedged)
    assert "did not look after its workers of cycle 1 for 120 s" in caplog.text


def test_an_agent_that_looks_after_its_workers_is_not_wedged(training: Driver) -> None:
    for _ in range(3):
        training.loop.tick(1)
        beat_on(training, WEDGED_BEATS - 1)
    assert training.loop.broken is None


@pytest.mark.parametrize("what", ["finished_in", "reported_in"])
def test_an_agent_whose_workers_have_ended_need_not_look_after_them(training: Driver, what: str) -> None:
    setattr(training.participant.progress, what, 1)
    beat_on(training, 2 * WEDGED_BEATS)
    assert training.loop.broken is None
