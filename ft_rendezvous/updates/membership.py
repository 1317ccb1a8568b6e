"""Who is in a fleet, in which state, and with which version. No input or output, and no clock.

A name stays, parties come and go: each party that takes a name is its next *life*. What an update finds out about an
earlier life changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.text import listing
from ft_rendezvous.updates.party import Party
from ft_rendezvous.updates.states import TAKES_PART, PartyState, PartyStep, next_party_state


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyRecord:
    """What is known of a party."""

    party: Party
    life: int = 1
    state: PartyState = PartyState.STALE
    version: int | None = None
    """Of the last update that completed on it."""
    failures: int = 0
    """In a row."""

    @property
    def name(self) -> str:
        return self.party.name


class FleetMembership:
    """The parties of a fleet. Every change goes through the table of states."""

    def __init__(self, parties: Iterable[Party], max_party_failures: int) -> None:
        self._records: dict[str, PartyRecord] = {}
        self._max_failures = max_party_failures
        for party in parties:
            if party.name in self._records:
                raise ConfigError(f"two parties are named {party.name!r}: give each a name of its own")
            self.put(party)

    @property
    def records(self) -> tuple[PartyRecord, ...]:
        return tuple(self._records.values())

    def __getitem__(self, name: str) -> PartyRecord:
        try:
            return self._records[name]
        except KeyError:
            raise ConfigError(f"the fleet has no party {name!r}: it has {listing(self._records)}") from None

    def taking_part(self) -> tuple[PartyRecord, ...]:
        return tuple(record for record in self._records.values() if record.state in TAKES_PART)

    def serving(self, min_version: int | None) -> tuple[Party, ...]:
        return tuple(
            record.party
            for record in self._records.values()
            if record.state is PartyState.HEALTHY
            and not record.party.essential
            and record.version is not None
            and (min_version is None or record.version >= min_version)
        )

    def put(self, party: Party) -> None:
        former = self._records.get(party.name)
        if former is None:
            self._records[party.name] = PartyRecord(party=party)
            return
        state = next_party_state(former.state, PartyStep.RETURN)
        self._records[party.name] = PartyRecord(party=party, life=former.life + 1, state=state)

    def restart(self, name: str) -> None:
        record = self[name]
        # The next life begins: an update that is under way must not make the party healthy.
        self._set(record, PartyStep.RESTART, life=record.life + 1, version=None)

    def complete(self, records: Sequence[PartyRecord], version: int) -> tuple[str, ...]:
        """An update has completed on these parties. Returns which of them have the version now."""
        updated = [record for known in records if (record := self._current(known)) is not None]
        for record in updated:
            self._set(record, PartyStep.COMPLETE, version=version, failures=0)
        return tuple(record.name for record in updated)

    def fail(self, known: PartyRecord, *, is_dead: bool) -> None:
        """A party has failed in an update."""
        record = self._current(known)
        if record is not None:
            failures = record.failures + 1
            has_died = is_dead or failures >= self._max_failures
            self._set(record, PartyStep.DIE if has_died else PartyStep.FAIL, failures=failures)

    def die(self, known: PartyRecord) -> None:
        """A party that failed turned out to be gone."""
        record = self._current(known)
        if record is not None:
            self._set(record, PartyStep.DIE)

    def fail_outside(self, name: str, *, is_dead: bool) -> None:
        """A party has failed outside of updates. An update that is under way does not make it healthy any more."""
        record = self[name]
        if record.state in TAKES_PART:
            self.fail(record, is_dead=is_dead)
            record = self[name]
            self._records[name] = replace(record, life=record.life + 1)
        elif is_dead:
            self._set(record, PartyStep.DIE)

    def is_current(self, known: PartyRecord) -> bool:
        """No other party has taken its name, and no caller has marked it, since this was known."""
        return self._current(known) is not None

    def _current(self, known: PartyRecord) -> PartyRecord | None:
        """The record of a party now. None if another party has taken its name meanwhile."""
        record = self._records.get(known.name)
        return record if record is not None and record.life == known.life else None

    def _set(self, record: PartyRecord, step: PartyStep, **changes: int | None) -> None:
        state = next_party_state(record.state, step)
        self._records[record.name] = replace(record, state=state, **changes)  # type: ignore[arg-type]
