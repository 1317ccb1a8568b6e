"""The rules of the council, as examples and in random runs of hosts, candidates, crashes and lost messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field

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
    Sight,
    accept,
    choose_members,
    decide,
    does_count,
    judge_promises,
    may_ask_for_promises,
    promise,
    succeed,
)
from ft_rendezvous.core.model import Verdict, VerdictKind

A, B, C, D, E = (CouncilMember(name, f"10.0.0.{number}", 1) for number, name in enumerate("abcde"))
THREE, TWO = Council((A, B, C)), Council((A, B))
SUCCEEDED = Verdict(VerdictKind.SUCCEEDED)


# --- examples ---------------------------------------------------------------------------------------


def test_a_ballot_never_goes_back_to_a_lower_term() -> None:
    ballot = promise(Ballot(1, "a", Charter(1, 1, THREE)), 3, "b")
    assert ballot is not None
    assert promise(ballot, 3, "c") is None, "terms are unique: no second candidate has this one"
    assert promise(ballot, 2, "c") is None
    assert accept(ballot, Charter(2, 2, THREE)) is None
    accepted = Charter(3, 2, Council((B, A, C)))
    assert accept(ballot, accepted) == Ballot(3, "b", accepted)


@pytest.mark.parametrize(
    ("council", "former", "accepted_by", "counts"),
    [
        (THREE, None, "ab", True),
        (THREE, None, "a", False),
        (THREE, None, "ade", False),
        (TWO, None, "a", False),
        (TWO, None, "ab", True),
        (Council((A, B, D)), THREE, "ad", False),
        (Council((A, B, D)), THREE, "ab", True),
        (Council((A, B, D)), THREE, "acd", True),
    ],
)
def test_a_charter_counts_with_a_majority_of_both_councils(
    council: Council, former: Council | None, accepted_by: str, counts: bool
) -> None:
    assert does_count(Charter(1, 1, council, former), accepted_by) == counts


def sights(**found: Sight) -> dict[str, Sight]:
    return found


@pytest.mark.parametrize(
    ("council", "found", "may"),
    [
        (THREE, sights(a=Sight.SILENT, b=Sight.OFFERS, c=Sight.OFFERS), True),
        (THREE, sights(a=Sight.SILENT, b=Sight.OFFERS, c=Sight.FOLLOWS), False),
        (THREE, sights(a=Sight.REFUSED, b=Sight.OFFERS, c=Sight.SILENT), False),
        (THREE, sights(a=Sight.REFUSED, b=Sight.OFFERS, c=Sight.REFUSED), False),
        (TWO, sights(a=Sight.SILENT, b=Sight.OFFERS), False),
        (TWO, sights(a=Sight.REFUSED, b=Sight.OFFERS), True),
    ],
)
def test_a_candidate_needs_a_majority_that_has_lost_the_host(
    council: Council, found: dict[str, Sight], may: bool
) -> None:
    assert may_ask_for_promises(Charter(1, 1, council), found) == may


def test_a_candidate_asks_the_newest_council_that_a_promiser_knows() -> None:
    stale, newer = Charter(1, 1, THREE), Charter(1, 5, Council((A, D, E)))
    ballots = {"b": Ballot(2, "b", stale), "c": Ballot(2, "b", newer)}
    assert judge_promises(2, "b", ballots) == Ask((A, D, E))
    ballots |= {"d": Ballot(2, "b", newer), "e": Ballot(2, "b", newer)}
    assert judge_promises(2, "b", ballots) == Elected(newer)
    assert judge_promises(2, "b", {**ballots, "e": Ballot(3, "a", newer)}) == Beaten(3)
    assert judge_promises(2, "b", {**ballots, "e": Ballot(2, "a", newer)}) == Beaten(2)


def test_a_new_host_goes_on_from_what_it_found() -> None:
    newest = decide(Charter(1, 6, THREE), newest_cycle=4, verdict=SUCCEEDED)
    first = succeed(newest, 2, "b", dead={"a"})
    assert first == Charter(2, 8, Council((B, C)), None, 4, SUCCEEDED)
    with pytest.raises(AssertionError):
        decide(first)


def test_successors_are_on_machines_and_in_domains_of_their_own_where_possible() -> None:
    host = CouncilMember("h", "m0", 1, "rack0")
    same, near, far, second = (
        CouncilMember("same", "m0", 2, "rack1"),
        CouncilMember("near", "m1", 1, "rack0"),
        CouncilMember("far", "m2", 1, "rack1"),
        CouncilMember("second", "m3", 1, "rack1"),
    )
    assert [each.name for each in choose_members(host, [same, near, far, second], 2)] == ["h", "far", "near"]
    assert [each.name for each in choose_members(host, [same], 2)] == ["h", "same"]
    assert choose_members(host, [], 2) == (host,)


# --- random runs ------------------------------------------------------------------------------------

Step = Generator[None, None, None]
Rule = Callable[..., object]


@dataclass
class Process:
    """One process that may hold a ballot, host, or be a candidate."""

    member: CouncilMember
    ballot: Ballot = field(default_factory=Ballot)
    is_alive: bool = True
    acts: Step | None = None


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
            self.processes[name].ballot = Ballot(1, "a", first)
        self.processes["a"].acts = self.host("a", first)
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

    def tell(self, name: str, change: Callable[[Ballot], Ballot | None]) -> Ballot | None:
        """Change a member's ballot in one step, and read it. None: it is dead, or a message was lost."""
        process = self.processes[name]
        if not process.is_alive or self.random.random() < self.losses:
            return None
        process.ballot = change(process.ballot) or process.ballot
        return None if self.random.random() < self.losses else process.ballot

    def commit(self, charter: Charter) -> Generator[None, None, bool]:
        names = charter.council.names | (charter.former.names if charter.former is not None else frozenset())
        accepted: set[str] = set()
        for _ in range(3):
            for name in self.random.sample(sorted(names), len(names)):
                ballot = self.tell(name, lambda found: rules.accept(found, charter))
                if ballot is not None and ballot.promised > charter.term:
                    return False
                if ballot is not None and ballot.charter == charter:
                    accepted.add(name)
                yield
            if rules.does_count(charter, accepted):
                return True
        return False

    def host(self, name: str, charter: Charter) -> Step:
        for _ in range(self.random.randrange(1, 30)):
            yield
            if charter.verdict is not None:
                return
            following = self.next_charter(name, charter)
            self.parents[following.age] = charter
            if not (yield from self.commit(following)):
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
        own = self.processes[name].ballot.charter
        assert own is not None
        ballots: dict[str, Ballot] = {}
        dead = self.refused(own.council.members)
        term = self.processes[name].ballot.promised + 1
        asked: Iterable[CouncilMember] = own.council.members
        for _ in range(4):
            for member in asked:
                ballot = self.tell(member.name, lambda found: rules.promise(found, term, name))
                if ballot is not None:
                    ballots[member.name] = ballot
                yield
            if not any(ballot.charter for ballot in ballots.values()):
                return
            judged = rules.judge_promises(term, name, ballots, dead)
            if isinstance(judged, Beaten):
                return
            if isinstance(judged, Elected):
                if self.terms.setdefault(term, name) != name:
                    raise Broken(f"term {term} has two hosts")
                first = rules.succeed(judged.newest, term, name, dead)
                if name not in first.council.names:
                    return
                self.parents[first.age] = judged.newest
                if (yield from self.commit(first)):
                    self.publish(first)
                    yield from self.host(name, first)
                return
            asked = judged.members
            dead |= self.refused(asked)

    def refused(self, members: Iterable[CouncilMember]) -> set[str]:
        """A dead process may be refused. A live one never is."""
        return {each.name for each in members if not self.processes[each.name].is_alive and self.random.random() < 0.7}

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
    published, moves = play(range(400))
    assert published > 1000
    assert moves > 100, "hosts must take over, else this proves nothing"


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
