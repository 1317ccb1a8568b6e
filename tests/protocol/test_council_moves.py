"""Hosts and candidates of a council in random runs: processes die, messages are lost, councils change at any moment.

All that is published must be one history. A broken rule must be found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ft_rendezvous.core import council as rules
from ft_rendezvous.core.council import (
    Ask,
    Ballot,
    Beaten,
    Charter,
    Council,
    CouncilMember,
    Elected,
    judge_promises,
    succeed,
)
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol import council_moves
from ft_rendezvous.protocol.council_moves import BALLOT_KEY, LOST_KEY, AtMember, BallotBox, CouncilMove
from ft_rendezvous.protocol.ops import Set
from tests.contract.benches import tcp_bench
from tests.sim.store import SimStore

Step = Generator[None, None, None]
Rule = Callable[..., object]


@dataclass
class Process:
    """One process with a store. It may hold a ballot, host, or be a candidate."""

    member: CouncilMember
    store: SimStore = field(default_factory=SimStore)
    is_alive: bool = True
    acts: Step | None = None

    @property
    def ballot(self) -> Ballot:
        data = self.store.data.get(BALLOT_KEY)
        return msgspec.json.decode(data, type=Ballot) if data else Ballot()


class Broken(AssertionError):
    """The rules were broken."""


class Run:
    """Processes whose messages are lost, late, or cut off by crashes. All that is published must be one history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice((2, 3, 3, 3))
        self.processes = {name: Process(CouncilMember(name, f"m{name}", 1)) for name in "abcdefg"}
        council = Council(tuple(self.processes[name].member for name in "abcdefg"[: self.size]))
        first = Charter(1, 1, council)
        self.parents: dict[tuple[int, int], Charter | None] = {first.age: None}
        self.published: list[Charter] = []
        self.terms: dict[int, str] = {1: "a"}
        for name in council.names:
            self.processes[name].store.data[BALLOT_KEY] = msgspec.json.encode(Ballot(1, "a", first))
        self.processes["a"].acts = self.host("a", BallotBox(), first)
        self.losses = self.random.choice((0.0, 0.1, 0.4))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            process = self.random.choice(list(self.processes.values()))
            if not process.is_alive:
                continue
            if self.random.random() < 0.004:
                process.is_alive = False
            elif process.acts is None and process.ballot.charter is not None and self.random.random() < 0.05:
                process.acts = self.candidate(process.member.name)
            elif process.acts is not None and next(process.acts, "done") == "done":
                process.acts = None

    # What a process does. Each `yield` is a moment in which any other process may act, or this one may die.

    def perform(self, move: CouncilMove[Any]) -> Generator[None, None, Any]:
        """Perform a move. Its messages may be lost, on the way or on the way back."""
        resume: Callable[[Any], AtMember] = move.send
        value: Any = None
        while True:
            try:
                request = resume(value)
            except StopIteration as stop:
                return stop.value
            yield
            try:
                resume, value = move.send, self.ask(request)
            except StoreUnavailable as error:
                resume, value = move.throw, error

    def ask(self, request: AtMember) -> Any:
        process = self.processes[request.member.name]
        if not process.is_alive:
            raise StoreUnavailable(process.member.name, "dead", is_refused=self.random.random() < 0.7)
        if self.random.random() < self.losses:
            raise StoreUnavailable(process.member.name, "lost on the way")
        reply = process.store.perform(request.op)
        if self.random.random() < self.losses:
            raise StoreUnavailable(process.member.name, "lost on the way back")
        return reply

    def host(self, name: str, box: BallotBox, charter: Charter) -> Step:
        for _ in range(self.random.randrange(1, 30)):
            yield
            if charter.verdict is not None:
                return
            following = self.next_charter(name, charter)
            self.parents[following.age] = charter
            for _ in range(3):
                committed = yield from self.perform(council_moves.commit(box, following))
                if committed is not None:
                    break
            if committed != following:
                return
            charter = following
            self.publish(charter)

    def next_charter(self, name: str, charter: Charter) -> Charter:
        drawn = self.random.random()
        if drawn < 0.3:
            candidates = [each.member for each in self.processes.values() if each.member.name != name]
            self.random.shuffle(candidates)
            return rules.change_council(charter, [charter.council.members[0], *candidates[: self.size - 1]])
        if drawn < 0.35:
            return rules.decide(charter, verdict=Verdict(VerdictKind.FAILED, f"by {name} in term {charter.term}"))
        return rules.decide(charter, newest_cycle=charter.newest_cycle + 1)

    def candidate(self, name: str) -> Step:
        own, box = self.processes[name], BallotBox()
        charter, term = own.ballot.charter, own.ballot.promised + 1
        assert charter is not None
        dead = {each.name for each in charter.council.members if self.is_refused(each.name)}
        elected = yield from self.perform(council_moves.stand(box, own.member, charter, term, dead))
        if not isinstance(elected, Elected):
            return
        if self.terms.setdefault(term, name) != name:
            raise Broken(f"term {term} has two hosts")
        first = rules.succeed(elected.newest, term, name, elected.dead)
        if name not in first.council.names:
            return
        self.parents[first.age] = elected.newest
        if (yield from self.perform(council_moves.commit(box, first))) == first:
            self.publish(first)
            yield from self.host(name, box, first)

    def is_refused(self, name: str) -> bool:
        """A dead process may be refused. A live one never is."""
        return not self.processes[name].is_alive and self.random.random() < 0.7

    # What must hold.

    def publish(self, charter: Charter) -> None:
        """All published charters are one history, whichever host published them, and a verdict is final."""
        self.published.append(charter)
        self.published.sort(key=lambda each: each.age)
        for earlier, later in zip(self.published, self.published[1:], strict=False):
            ancestor: Charter | None = later
            while ancestor is not None and ancestor.age > earlier.age:
                ancestor = self.parents[ancestor.age]
            if ancestor != earlier:
                raise Broken(f"{earlier} is lost: {later} does not follow from it")
            if earlier.verdict is not None and later.verdict != earlier.verdict:
                raise Broken("a verdict was lost")
            if later.newest_cycle < earlier.newest_cycle:
                raise Broken("a cycle id was used again")


def play(seeds: Iterable[int], steps: int = 800) -> tuple[int, int]:
    """Returns how many charters were published, and how many hosts took over."""
    published = moves = 0
    for seed in seeds:
        run = Run(seed)
        run.run(steps)
        published += len(run.published)
        moves += len({charter.term for charter in run.published} - {1})
    return published, moves


def test_random_runs_have_one_history() -> None:
    published, moves = play(range(200))
    assert published > 500
    assert moves > 50, "hosts must take over, else this proves nothing"


def forget_promises(ballot: Ballot, term: int, candidate: str) -> Ballot | None:
    return Ballot(term, candidate, ballot.charter)


def accept_any_term(ballot: Ballot, charter: Charter) -> Ballot | None:
    if ballot.charter is not None and charter.age <= ballot.charter.age:
        return None
    return Ballot(charter.term, charter.host, charter)


def count_one_council(charter: Charter, accepted_by: Collection[str]) -> bool:
    return len(charter.council.names & set(accepted_by)) >= charter.council.majority


def count_alone(charter: Charter, accepted_by: Collection[str]) -> bool:
    return bool(charter.council.names & set(accepted_by))


def elect_by_those_who_came(
    term: int, candidate: str, ballots: dict[str, Ballot], _dead: Collection[str] = ()
) -> Elected | Beaten:
    if any((ballot.promised, ballot.candidate) != (term, candidate) for ballot in ballots.values()):
        return Beaten(term)
    return Elected(rules.find_newest(ballots.values()))


def share_a_term(term: int, _candidate: str, ballots: dict[str, Ballot], dead: Collection[str] = ()) -> object:
    own = {name: Ballot(ballot.promised, "me", ballot.charter) for name, ballot in ballots.items()}
    return judge_promises(term, "me", own, dead)


def elect_by_an_old_council(
    term: int, candidate: str, ballots: dict[str, Ballot], dead: Collection[str] = ()
) -> Elected | Ask | Beaten:
    """By the oldest council that a promiser knows, from the newest charter."""
    charters = [ballot.charter for ballot in ballots.values() if ballot.charter is not None]
    oldest = min(charters, key=lambda charter: charter.age)
    stale = {name: Ballot(ballot.promised, ballot.candidate, oldest) for name, ballot in ballots.items()}
    judged = judge_promises(term, candidate, stale, dead)
    return Elected(rules.find_newest(ballots.values())) if isinstance(judged, Elected) else judged


def take_silence_for_death(term: int, candidate: str, ballots: dict[str, Ballot], dead: Collection[str] = ()) -> object:
    newest = rules.find_newest(ballots.values())
    return judge_promises(term, candidate, ballots, {*dead, *(newest.council.names - set(ballots))})


def go_on_from_the_own_charter(newest: Charter, term: int, host: str, dead: Collection[str] = ()) -> Charter:
    return succeed(Charter(1, 1, newest.council), term, host, dead)


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("promise", forget_promises),
        ("accept", accept_any_term),
        ("does_count", count_one_council),
        ("does_count", count_alone),
        ("judge_promises", elect_by_those_who_came),
        ("judge_promises", share_a_term),
        ("judge_promises", elect_by_an_old_council),
        ("judge_promises", take_silence_for_death),
        ("succeed", go_on_from_the_own_charter),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_rule_is_caught(monkeypatch: pytest.MonkeyPatch, rule: str, broken: Rule) -> None:
    monkeypatch.setattr(rules, rule, broken)
    with pytest.raises((Broken, AssertionError)):
        play(range(3000))


# --- on a real store ----------------------------------------------------------------------------------


def test_a_run_moves_on_real_stores() -> None:
    """Three members with a TCPStore each: the host decides, a successor takes over, and the old host is beaten."""
    with tcp_bench() as first, tcp_bench() as second, tcp_bench() as third:
        benches = dict(zip("abc", (first, second, third), strict=True))
        a, b, c = (CouncilMember(name, "127.0.0.1", bench.port) for name, bench in benches.items())

        def perform(move: CouncilMove[Any], silent: str = "") -> Any:
            resume: Callable[[Any], AtMember] = move.send
            value: Any = None
            while True:
                try:
                    request = resume(value)
                except StopIteration as stop:
                    return stop.value
                if request.member.name in silent:
                    resume, value = move.throw, StoreUnavailable(request.member.name, "no answer")
                else:
                    resume, value = move.send, benches[request.member.name].perform(request.op)

        host, successor = BallotBox(), BallotBox()
        begun = Charter(1, 1, Council((a, b, c)))
        assert perform(council_moves.commit(host, begun)) == begun
        opened = rules.decide(begun, newest_cycle=1)
        assert perform(council_moves.commit(host, opened), silent="c") == opened
        assert perform(council_moves.look_around(b, opened)) == {"b": "offers", "a": "follows", "c": "follows"}
        benches["c"].perform(Set(LOST_KEY, b"1"))
        sights = perform(council_moves.look_around(b, opened), silent="a")
        assert sights == {"b": "offers", "a": "silent", "c": "offers"}
        assert rules.may_ask_for_promises(opened, sights)
        elected = perform(council_moves.stand(successor, b, begun, 2), silent="a")
        assert elected == Elected(opened), "the newest charter, though the candidate and c knew an older one"
        moved = succeed(opened, 2, "b")
        assert perform(council_moves.commit(successor, moved), silent="a") == moved
        assert perform(council_moves.commit(host, rules.decide(opened, newest_cycle=2))) == Beaten(2)
        assert perform(council_moves.stand(BallotBox(), a, opened, 2)) == Beaten(2)
