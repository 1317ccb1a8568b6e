"""The council of a run: the host and its successors, and which of their decisions count.

Pure rules by which a run can outlive its host. No host follows them yet: docs/decisions/council.md. Each member holds a
*ballot*: the highest term it has promised to, and the newest *charter* it has accepted. A charter is the newest
decision of a run with all that a later host must know.

1. A member changes its ballot in one step (a compare and set), so a ballot never goes back to a lower term.
2. A charter counts when a majority of its council has accepted it; while the council changes, also a majority of the
   former one. A host publishes a decision only when its charter counts.
3. A candidate decides only with promises from a majority of the newest council that any promiser has heard of. It goes
   on from the newest charter among them.

Two majorities of one council share a member. So of two hosts the one with the lower term finds a member that has
promised to the other, and its charter does not count. And a candidate finds every charter that counts, at the member
that both majorities share. No clock and no delay appears in this argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from ft_rendezvous.core.model import Verdict


class CouncilMember(msgspec.Struct, frozen=True):
    """A process that holds a ballot."""

    name: str
    """Names one life of this process. A process that starts anew has no ballot, and another name."""
    addr: str
    port: int
    domain_id: str | None = None


class Council(msgspec.Struct, frozen=True):
    """The members, the host first."""

    members: tuple[CouncilMember, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.members)

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1


class Charter(msgspec.Struct, frozen=True):
    """The newest decision of a run, and what a later host must know."""

    term: int
    no: int
    """Counts the decisions of a run, over all terms."""
    council: Council
    former: Council | None = None
    """The council before, if this decision changes it."""
    newest_cycle: int = 0
    verdict: Verdict | None = None
    """How the run was closed. This is final."""

    @property
    def host(self) -> str:
        return self.council.members[0].name

    @property
    def age(self) -> tuple[int, int]:
        """Orders charters: the newest is the greatest."""
        return self.term, self.no


class Ballot(msgspec.Struct, frozen=True):
    """What one member has promised and accepted."""

    promised: int = 0
    candidate: str = ""
    """To which member it has promised this term. Another candidate may ask for the same term."""
    charter: Charter | None = None


class Sight(StrEnum):
    """What a candidate has found at a member."""

    OFFERS = "offers"
    """It has lost the host, too."""
    FOLLOWS = "follows"
    """It hears the host."""
    REFUSED = "refused"
    """Its machine answers that no process is there."""
    SILENT = "silent"


# --- ballots ----------------------------------------------------------------------------------------


def promise(ballot: Ballot, term: int, candidate: str) -> Ballot | None:
    """The ballot after a promise. None if the member has promised to this term or a higher one: terms are unique."""
    return Ballot(term, candidate, ballot.charter) if term > ballot.promised else None


def accept(ballot: Ballot, charter: Charter) -> Ballot | None:
    """The ballot after a charter was accepted. None if the member has promised to a higher term, or has a newer one."""
    if charter.term < ballot.promised or (ballot.charter is not None and charter.age <= ballot.charter.age):
        return None
    return Ballot(charter.term, charter.host, charter)


# --- majorities -------------------------------------------------------------------------------------


def does_count(charter: Charter, accepted_by: Collection[str]) -> bool:
    """Whether a charter counts: a host may publish its decision."""
    councils = (charter.council, charter.former)
    return all(_is_majority(council, accepted_by) for council in councils if council is not None)


def _is_majority(council: Council, names: Collection[str]) -> bool:
    return len(council.names & frozenset(names)) >= council.majority


def _leaves_no_majority(council: Council, promised: Collection[str], dead: Collection[str]) -> bool:
    """Whether no other process can have, or get, a majority without a member that has promised.

    A dead member never answers again. It may have accepted a charter that counts, so it counts as one of the others
    for what has happened, and for nothing that is to come.
    """
    others = council.names - frozenset(promised)
    alive = council.names - frozenset(dead)
    return len(others) < council.majority and len(alive & frozenset(promised)) > len(alive) // 2


# --- a candidate ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """More is needed: these members have not answered."""

    members: tuple[CouncilMember, ...]


@dataclass(frozen=True, slots=True)
class Elected:
    """The candidate is the host of its term, and goes on from this charter."""

    newest: Charter
    dead: frozenset[str] = frozenset()
    """Members that were counted as dead for that: the next council must not have them."""


@dataclass(frozen=True, slots=True)
class Beaten:
    """Another candidate has this term, or a higher one."""

    term: int


def may_ask_for_promises(charter: Charter, sights: Mapping[str, Sight]) -> bool:
    """Whether enough members have lost the host. Offers bind no member: a minority behind a partition can go back."""
    offering = {name for name, sight in sights.items() if sight is Sight.OFFERS}
    dead = {name for name, sight in sights.items() if sight is Sight.REFUSED}
    councils = (charter.council, charter.former)
    return all(_leaves_no_majority(council, offering, dead) for council in councils if council is not None)


def judge_promises(
    term: int, candidate: str, ballots: Mapping[str, Ballot], dead: Collection[str] = ()
) -> Elected | Ask | Beaten:
    """What the ballots of all members that have answered mean for the candidate of a term."""
    for ballot in ballots.values():
        if ballot.promised > term or (ballot.promised == term and ballot.candidate != candidate):
            return Beaten(ballot.promised)
    newest = find_newest(ballots.values())
    promised = [name for name, ballot in ballots.items() if ballot.promised == term]
    councils = [council for council in (newest.council, newest.former) if council is not None]
    if all(_leaves_no_majority(council, promised, dead) for council in councils):
        return Elected(newest, frozenset(dead))
    members = {member.name: member for council in councils for member in council.members}
    return Ask(tuple(member for name, member in members.items() if name not in promised and name not in dead))


def find_newest(ballots: Iterable[Ballot]) -> Charter:
    """The newest charter. At least the candidate's own ballot has one."""
    return max((ballot.charter for ballot in ballots if ballot.charter is not None), key=lambda charter: charter.age)


# --- a host -----------------------------------------------------------------------------------------


def succeed(newest: Charter, term: int, host: str, dead: Collection[str] = ()) -> Charter:
    """The first charter of a new host: the newest decision again, with the new host first in the council.

    Members that are known to be dead are left out: each later candidate needs a majority of those that live, too. A
    member that is only silent stays until it is replaced. A change of the council that had begun is completed.
    """
    first = sorted(newest.council.members, key=lambda member: member.name != host)
    council = Council(tuple(member for member in first if member.name not in dead))
    former = newest.former
    if former is not None:
        former = Council(tuple(member for member in former.members if member.name not in dead))
    return msgspec.structs.replace(newest, term=term, no=newest.no + 1, council=council, former=former)


def decide(charter: Charter, *, newest_cycle: int | None = None, verdict: Verdict | None = None) -> Charter:
    """The charter of the next decision of the same host. A run that is closed stays closed."""
    assert charter.verdict is None, "a closed run decides nothing"
    cycle = charter.newest_cycle if newest_cycle is None else newest_cycle
    assert cycle >= charter.newest_cycle, "cycle ids are never used again"
    return msgspec.structs.replace(charter, no=charter.no + 1, former=None, newest_cycle=cycle, verdict=verdict)


def change_council(charter: Charter, members: Sequence[CouncilMember]) -> Charter:
    """The charter that changes the council. The charter before it must count."""
    council = Council(tuple(members))
    assert council.members[:1] == charter.council.members[:1], "the host stays"
    return msgspec.structs.replace(charter, no=charter.no + 1, council=council, former=charter.council)


def choose_members(
    host: CouncilMember, candidates: Sequence[CouncilMember], successors: int
) -> tuple[CouncilMember, ...]:
    """The host and its successors, in the order of preference: other machines and other domains first."""
    chosen = [host]
    waiting = list(candidates)
    while waiting and len(chosen) <= successors:
        best = min(waiting, key=lambda member: _closeness(member, chosen))
        waiting.remove(best)
        chosen.append(best)
    return tuple(chosen)


def _closeness(member: CouncilMember, chosen: Sequence[CouncilMember]) -> tuple[int, int]:
    """How much a member shares with those that are chosen. The first of several equal ones is taken."""
    same_machine = sum(member.addr == other.addr for other in chosen)
    same_domain = sum(member.domain_id is not None and member.domain_id == other.domain_id for other in chosen)
    return same_machine, same_domain
