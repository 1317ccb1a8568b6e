"""Moves of a host and of a candidate on the ballots of a council: each ballot is one key in a store of its member.

A member does nothing itself: its store changes a ballot by compare and set, and a host or a candidate asks for that.
Decides nothing: `core.council` does. No host follows this yet: docs/decisions/council.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ft_rendezvous.core import council as rules
from ft_rendezvous.core.council import Ballot, Beaten, Charter, CouncilMember, Elected, Sight
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import CompareSet, Op

BALLOT_KEY = "ft/ballot"
LOST_KEY = "ft/lost"
"""A member sets it in its own store: the highest term whose host it has lost."""
MOST_TRIES = 8
"""How often a ballot is tried that others change at the same time."""
MOST_ROUNDS = 4
"""How often a candidate asks members that it did not know of before."""
_NONE = b"-"
"""What a read of a missing key returns. No value is so short."""


@dataclass(frozen=True, slots=True)
class AtMember:
    """An operation on the store of a member. Raises StoreUnavailable."""

    member: CouncilMember
    op: Op


T = TypeVar("T")
CouncilMove = Generator[AtMember, Any, T]

_encoder = msgspec.json.Encoder()
_ballot = msgspec.json.Decoder(Ballot)


@dataclass(slots=True)
class BallotBox:
    """What a host or a candidate last knew of each ballot. A good guess spares a read."""

    known: dict[str, bytes] = field(default_factory=dict)

    def change(self, member: CouncilMember, change: Callable[[Ballot], Ballot | None]) -> CouncilMove[Ballot]:
        """Change a ballot in one step, if `change` allows it. Returns the ballot as it is then.

        `change` may be called several times, with the ballot as others have left it.
        """
        before = self.known.get(member.name)
        if before is None:
            before = yield from self._read(member)
        for _ in range(MOST_TRIES):
            after = change(_decode(before))
            if after is None:
                found = yield from self._read(member)
                if found == before:
                    return _decode(found)
            else:
                wanted = _encoder.encode(after)
                found = yield AtMember(member, CompareSet(BALLOT_KEY, before, wanted))
                if found == wanted:
                    self.known[member.name] = found
                    return after
                if found == before:  # The key is gone: this is another life of the process.
                    raise StoreUnavailable(f"{member.addr}:{member.port}", "it has lost its ballot", is_refused=True)
            self.known[member.name] = before = found
        return _decode(before)

    def _read(self, member: CouncilMember) -> CouncilMove[bytes]:
        found: bytes = yield AtMember(member, CompareSet(BALLOT_KEY, _NONE, _NONE))
        self.known[member.name] = value = b"" if found == _NONE else found
        return value


def _decode(data: bytes) -> Ballot:
    return _ballot.decode(data) if data else Ballot()


def commit(box: BallotBox, charter: Charter) -> CouncilMove[Charter | Beaten | None]:
    """Have a charter accepted, by as many members as can be reached.

    Returns the charter if it counts, who has a higher term, or None if too few members can be reached.
    """
    accepted: set[str] = set()
    for member in _members_of(charter):
        try:
            ballot = yield from box.change(member, lambda found: rules.accept(found, charter))
        except StoreUnavailable:
            continue
        if ballot.promised > charter.term:
            return Beaten(ballot.promised)
        if ballot.charter == charter:
            accepted.add(member.name)
    return charter if rules.does_count(charter, accepted) else None


def look_around(own: CouncilMember, charter: Charter) -> CouncilMove[dict[str, Sight]]:
    """What a candidate finds at the members of its council. It binds no member."""
    sights = {own.name: Sight.OFFERS}
    for member in _members_of(charter):
        if member.name == own.name:
            continue
        try:
            found: bytes = yield AtMember(member, CompareSet(LOST_KEY, _NONE, _NONE))
        except StoreUnavailable as error:
            sights[member.name] = Sight.REFUSED if error.is_refused else Sight.SILENT
        else:
            has_lost = found != _NONE and int(found) >= charter.term
            sights[member.name] = Sight.OFFERS if has_lost else Sight.FOLLOWS
    return sights


def stand(
    box: BallotBox, own: CouncilMember, charter: Charter, term: int, dead: Iterable[str] = ()
) -> CouncilMove[Elected | Beaten | None]:
    """Ask for the promises of a majority. None if too few members can be reached.

    `charter` is the newest that the candidate knows. Members that refuse are added to the `dead`.
    """
    known_dead, ballots = set(dead), dict[str, Ballot]()
    asked: Sequence[CouncilMember] = [own, *(each for each in _members_of(charter) if each.name != own.name)]
    for _ in range(MOST_ROUNDS):
        for member in asked:
            try:
                ballots[member.name] = yield from box.change(member, lambda found: rules.promise(found, term, own.name))
            except StoreUnavailable as error:
                if error.is_refused:
                    known_dead.add(member.name)
        if not any(ballot.charter for ballot in ballots.values()):
            return None
        judged = rules.judge_promises(term, own.name, ballots, known_dead)
        if isinstance(judged, Elected | Beaten):
            return judged
        asked = judged.members
    return None


def _members_of(charter: Charter) -> list[CouncilMember]:
    """Those of both councils, while it changes."""
    councils = [council for council in (charter.council, charter.former) if council is not None]
    return list({member.name: member for council in councils for member in council.members}.values())
