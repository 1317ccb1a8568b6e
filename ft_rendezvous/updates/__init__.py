"""Updates of several parties that end completed, restored or unrecoverable, and never half done (`ftr docs updates`).

It owns the flow of an update: steps, their clean-up, the second try, and which party may serve. It must not know what a
step does, block the event loop, or need more than the standard library. Only `ray_actors` knows Ray.
"""

from ft_rendezvous.errors import CleanupError, PartyDead, UpdateError
from ft_rendezvous.updates.attempt import Update
from ft_rendezvous.updates.fleet import Fleet
from ft_rendezvous.updates.membership import PartyRecord
from ft_rendezvous.updates.party import Party
from ft_rendezvous.updates.ranks import ranks_party
from ft_rendezvous.updates.states import PartyState

__all__ = [
    "CleanupError",
    "Fleet",
    "Party",
    "PartyDead",
    "PartyRecord",
    "PartyState",
    "Update",
    "UpdateError",
    "ranks_party",
]
