"""What the coordinator publishes: numbered events, numbered cycles, and the head that sums them up.

Owns the view of the run and both numbers. Decides nothing. Written as moves, so it performs nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import (
    AnyEvent,
    AnyWhy,
    Arrival,
    Called,
    Closed,
    Head,
    Inquired,
    Opened,
    Placement,
    Sealed,
    Verdict,
    View,
    fold,
)
from ft_rendezvous.core.seats import masters, seat
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Move


@dataclass(slots=True)
class Publisher:
    """The one writer of events and of the head."""

    settings: RunSettings
    epoch: str
    keys: Keys
    lighthouse: str = ""
    """The address of the run's lighthouse, if it has one."""
    lifeline_port: int = 0
    """Where the host listens for lifelines. 0: it does not."""
    channels: int = field(init=False)
    view: View = field(init=False)
    """The last common cycle, and the number of the last event."""
    newest_id: int = field(init=False, default=0)
    """The newest cycle, common or of a group."""
    _seals: list[tuple[int, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.channels = codec.channel_count(self.settings.max_nodes)

    @property
    def _next_no(self) -> int:
        return 1 if self.newest_id == 0 else self.view.no + 1

    def open_cycle(self, why: AnyWhy, ring_at: int, group: int | None = None) -> Move[Opened]:
        """Open the next cycle: a common one, or that of a group, whose records go to the log of the last common one."""
        no = self._next_no
        self.newest_id += 1
        opened = Opened(
            no=no,
            cycle_id=self.newest_id,
            shards=codec.shard_count(self.settings.max_nodes),
            ring_at=ring_at,
            channels=self.channels,
            why=why,
            log_id=self.newest_id if group is None else self.view.opened.log_id,
            group=group,
        )
        if group is None:
            self._seals.clear()
        yield from moves.publish_opened(self.keys, opened, self._turn(opened))
        return opened

    def seal_cycle(
        self,
        cycle_id: int,
        placement: Placement,
        arrivals: Mapping[str, Arrival],
        *,
        counted: int,
        group_count: int = 1,
        group: int | None = None,
    ) -> Move[Sealed]:
        """Seal a cycle: every node that this placement names learns its seat."""
        sealed = Sealed(
            no=self._next_no,
            cycle_id=cycle_id,
            world_size=len(placement.ranks) // len(placement.groups),
            counted=counted,
            masters=masters(placement, arrivals),
            group=group,
            group_count=group_count,
        )
        if group is not None:
            self._seals.append((sealed.no, counted))
        yield from moves.publish_sealed(self.keys, sealed, seat(placement, arrivals), self._turn(sealed))
        return sealed

    def call(self, cycle_id: int, draining: Sequence[str], reason: str, group: int | None = None) -> Move[None]:
        """Say that the next cycle opens when it suits the workers, and ask nodes to give up their places in it."""
        called = Called(no=self._next_no, cycle_id=cycle_id, draining=tuple(draining), reason=reason[:200], group=group)
        head = self._turn(msgspec.structs.replace(called, draining=()))
        yield from moves.publish_called(self.keys, called, head)

    def inquire(self, cycle_id: int, group: int) -> Move[int]:
        """Ask the nodes of a cycle and group where their workers are. Returns the number of the event."""
        inquired = Inquired(no=self._next_no, cycle_id=cycle_id, group=group)
        yield from moves.publish_to_all(self.keys, inquired, self._turn(inquired))
        return inquired.no

    def close(self, verdict: Verdict) -> Move[None]:
        closed = Closed(no=self._next_no, verdict=verdict)
        yield from moves.publish_to_all(self.keys, closed, self._turn(closed))

    def forget_seals(self, deleted_events: int) -> None:
        """No newcomer can have a seat in a seal whose event is deleted."""
        self._seals = [seal for seal in self._seals if seal[0] > deleted_events]

    def _turn(self, event: AnyEvent) -> Head:
        """Take the next event into the view. Returns the head to publish with it."""
        if isinstance(event, Opened) and event.group is None:
            self.view = View(no=event.no, opened=event)  # There is no view before the first one.
        else:
            self.view = fold(self.view, event)
        settings = self.settings
        return Head(
            run_id=settings.run_id,
            epoch=self.epoch,
            settings=settings.as_dict(),
            view=self.view,
            seals=tuple(self._seals),
            lighthouse=self.lighthouse,
            lifeline_port=self.lifeline_port,
        )
