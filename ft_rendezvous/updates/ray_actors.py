"""Ray actors as parties. This is the only module of the package that knows Ray.

It awaits object refs and never calls `ray.get`, so no call blocks the event loop. Ray's errors say whether an actor is
dead, or cannot be reached now.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from ft_rendezvous.errors import ConfigError, PartyDead
from ft_rendezvous.updates.party import Party
from ft_rendezvous.updates.rules import EndKind
from ft_rendezvous.updates.threads import call_in_thread, mirror, until_over

try:
    from ray.exceptions import (
        ActorUnavailableError,
        NodeDiedError,
        ObjectLostError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )
except ImportError as error:
    raise ConfigError("Ray is not installed: pip install 'ft-rendezvous[ray]'") from error

UNREACHED = (ActorUnavailableError, NodeDiedError, ObjectLostError, WorkerCrashedError)
"""The actor may be back, or restarted by Ray. What it holds is not known."""


class RayAdapter:
    """Calls methods of an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def attribute(self, name: str) -> Any:
        return partial(_call, getattr(self._actor, name))

    def judge(self, error: BaseException) -> EndKind:
        if isinstance(error, RayTaskError):
            # The method raised, perhaps an error of another actor: it looks like one of this actor, and is none.
            return EndKind.DEAD if isinstance(error, PartyDead) else EndKind.RAISED
        if isinstance(error, UNREACHED):
            return EndKind.UNAVAILABLE
        return EndKind.DEAD if isinstance(error, RayActorError | PartyDead) else EndKind.RAISED


async def _call(method: Any, *args: Any, **kwargs: Any) -> Any:
    # Ray serializes the arguments before it returns, which takes long if they are weights.
    refs = await until_over(call_in_thread(method.remote, *args, **kwargs))
    if isinstance(refs, list):
        return await until_over(asyncio.gather(*(mirror(ref.future()) for ref in refs)))
    return await until_over(mirror(refs.future()))


def ray_party(actor: Any, name: str = "", *, essential: bool = False) -> Party:
    """A Ray actor as a party. Its calls must be able to overlap: give the actor `max_concurrency` of at least 2."""
    return Party(name or f"actor-{actor._actor_id.hex()[:12]}", actor, essential=essential, adapter=RayAdapter(actor))
