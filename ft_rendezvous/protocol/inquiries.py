"""Inquiries: a rank is late, so the coordinator asks the nodes of its world where their workers are, and judges.

Owns the inquiries that stand, one per group at most. Written as moves, so it performs nothing itself. While one rank is
paused, the ranks of all other nodes are late, each node a moment after another. So after an inquiry that has found no
hang, there is a rest: a node that says meanwhile that a rank is late is heard at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ft_rendezvous.core.hangs import ANSWER_TIMEOUT_S, Hang, Inquiry, Suspect, describe_late, describe_stack
from ft_rendezvous.core.model import Late
from ft_rendezvous.core.sealed_world import SealedWorld
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.membership import Asked, Membership
from ft_rendezvous.protocol.ops import Clock, Move
from ft_rendezvous.protocol.publisher import Publisher

REST_S = ANSWER_TIMEOUT_S
"""How long no world is asked again that was found to go on."""


@dataclass(slots=True)
class Inquiries:
    """The inquiries that stand."""

    publisher: Publisher
    membership: Membership
    clock: Clock
    journal: journal.Journal
    pending: dict[int, Inquiry] = field(default_factory=dict)
    """By group."""
    rests_until: dict[int, float] = field(default_factory=dict)
    """By group, after an inquiry that has found no hang."""
    held: dict[int, Late] = field(default_factory=dict)
    """What was first said in such a rest."""

    def tick(self, asked: Asked) -> Move[float]:
        """Ask, take in answers, and judge what is due. Returns when the next inquiry is due.

        A judgement adds a trouble to its world. The next cycle opens because of that, as it does for any other trouble.
        """
        for late in [*self._take_held(), *asked.late]:
            yield from self._inquire(late)
        for answer in asked.stacks:
            world = self.membership.roster.world_of(answer.incarnation)
            if world is not None and world.group in self.pending:
                # Ranks of different groups have the same numbers.
                self.pending[world.group].take(answer)
        for group, inquiry in list(self.pending.items()):
            self._advance(group, inquiry)
        due = [inquiry.due_at for inquiry in self.pending.values()]
        return min([*due, *(self.rests_until[group] for group in self.held)], default=float("inf"))

    def _take_held(self) -> list[Late]:
        """What was said in rests that are over."""
        now = self.clock()
        self.rests_until = {group: until for group, until in self.rests_until.items() if now < until}
        return [self.held.pop(group) for group in list(self.held) if group not in self.rests_until]

    def _inquire(self, late: Late) -> Move[None]:
        roster = self.membership.roster
        world = roster.world_of(late.incarnation)
        if world is None or world.group in self.pending or not self._goes_on(world, late.cycle_id):
            return
        if world.group in self.rests_until:
            self.held.setdefault(world.group, late)
            return
        suspect = Suspect(late.incarnation, late.rank, late.step, late.late_s, late.after_s, late.is_starting)
        no = yield from self.publisher.inquire(world.cycle_id, world.group)
        due_at = self.clock() + ANSWER_TIMEOUT_S
        self.pending[world.group] = Inquiry(no, world.cycle_id, world.group, suspect, due_at)
        name = roster.describe(late.incarnation)
        entry = journal.RankLate(cycle_id=world.cycle_id, node=name, rank=late.rank, text=describe_late(late))
        self.journal(entry)

    def _goes_on(self, world: SealedWorld, cycle_id: int) -> bool:
        """Whether a world trains, and all of it does. Of nodes that have finished none can train again."""
        roster = self.membership.roster
        is_open = self.membership.is_open or world.group in roster.open_groups
        is_whole = not world.troubles and not world.finished_count
        return roster.worlds.get(world.group) is world and world.cycle_id == cycle_id and is_whole and not is_open

    def _advance(self, group: int, inquiry: Inquiry) -> None:
        roster = self.membership.roster
        world = roster.worlds.get(group)
        if (
            world is None
            or not self._goes_on(world, inquiry.cycle_id)
            or inquiry.suspect.incarnation not in world.ranks
        ):
            del self.pending[group]
            return
        if not inquiry.is_complete(tuple(world.ranks), self.clock()):
            return
        del self.pending[group]
        judged = inquiry.judge({seat.incarnation: seat.node.local_world_size for seat in world.seats})
        if isinstance(judged, Hang):
            self._end(world, inquiry, judged)
        else:
            self.rests_until[group] = self.clock() + REST_S
            self.journal(journal.HangDenied(cycle_id=world.cycle_id, rank=inquiry.suspect.rank, reason=judged.reason))

    def _end(self, world: SealedWorld, inquiry: Inquiry, hang: Hang) -> None:
        note = self.membership.roster.end_hung_world(hang, inquiry.suspect, world)
        stacks = {", ".join(map(str, group.ranks)): describe_stack(group) for group in hang.odd.groups}
        node = None if note is None or not note.is_blamed else note.node
        self.journal(
            journal.HangFound(
                cycle_id=world.cycle_id,
                node=node,
                rank=hang.rank,
                step=hang.step,
                reason=hang.reason,
                stacks=stacks,
            )
        )
        if note is not None and self.membership.ledger.note(note):
            self.journal(journal.WorkersEnded(failure=note))
