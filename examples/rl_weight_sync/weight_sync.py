"""The weights of a trainer come to generators on Ray: the steps of an update, and replacements for generators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import generator
import ray
import weight_group
from generator import Generator
from torch import nn
from torch.distributed import TCPStore
from weight_group import GLOO_TIMEOUT, Address, GroupMember, checksum_of

from ft_rendezvous.updates import Fleet, Party, PartyState, Update
from ft_rendezvous.updates.ray_actors import ray_party
from ft_rendezvous.worker import UpdateReport

TRAINER = "trainer"

# Workers of Ray get these modules with the actor: no other machine needs this folder.
for module in (generator, weight_group):
    ray.cloudpickle.register_pickle_by_value(module)


class Trainer(GroupMember):
    """Sends the weights of a policy, which must not change during an update. It is rank 0."""

    def __init__(self, policy: nn.Module, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.midway: Callable[[], object] | None = None
        """Called once, when a part of the weights is sent: here, a generator is killed."""
        self._policy = policy
        self._host = host
        self._store: TCPStore | None = None

    def checksum(self) -> str:
        return checksum_of(self._policy.parameters())

    def open_store(self) -> Address:
        """A new store on a new port. The former one is closed."""
        self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=GLOO_TIMEOUT)
        return self._host, self._store.port

    def send(self) -> str:
        first, *others = [weights.detach() for weights in self._policy.parameters()]
        self.group.broadcast(first)
        midway, self.midway = self.midway, None
        if midway is not None:
            midway()
        for weights in others:
            self.group.broadcast(weights)
        self.group.meet_all()
        return self.checksum()


class WeightSync:
    """A trainer, its generators, and the fleet that they are."""

    def __init__(self, trainer: Trainer, names: Sequence[str], **fleet_settings: Any) -> None:
        self.trainer = trainer
        self.actors = {name: start_generator() for name in names}
        parties = [ray_party(actor, name) for name, actor in self.actors.items()]
        self.fleet = Fleet([Party(TRAINER, trainer, essential=True), *parties], **fleet_settings)

    async def wait_until_ready(self) -> None:
        """The processes of all generators run. They import torch first."""
        await asyncio.gather(*(_is_ready(actor) for actor in self.actors.values()))

    async def update(self, version: int) -> UpdateReport:
        return await self.fleet.update(self._send_weights, version=version)

    async def _send_weights(self, update: Update) -> None:
        address = await asyncio.to_thread(self.trainer.open_store)
        size = len(update.parties)
        await update.step("pause", _on_generators("pause"), finish=_on_generators("resume"))
        await update.step(
            "connect",
            lambda p: p.join(address, update.rank_of(p), size),
            finish=lambda p: p.leave_group(),
            abort=lambda p: p.kill_group(address),
        )
        checksums = await update.step(
            "transfer",
            lambda p: p.send() if p.party_name == TRAINER else p.receive(),
            undo=_on_generators("restore"),
            abort=lambda p: p.kill_group(address),
        )
        if len(set(checksums.values())) > 1:
            raise RuntimeError(f"the weights differ: {checksums}")

    async def replace(self, name: str) -> None:
        """Start another generator under this name. It is STALE, and does not serve before the next update."""
        self.fleet.mark_restarting(name)
        ray.kill(self.actors[name])  # It may only be silent, and come back.
        self.actors[name] = start_generator()
        await _is_ready(self.actors[name])
        self.fleet.put(ray_party(self.actors[name], name))

    def names_of(self, state: PartyState) -> list[str]:
        """The parties that are in this state."""
        return [record.name for record in self.fleet.parties if record.state is state]

    def close(self) -> None:
        for actor in self.actors.values():
            ray.kill(actor)


def start_generator() -> Any:
    remote: Any = ray.remote(num_cpus=0, max_concurrency=4)
    return remote(Generator).remote()


async def _is_ready(actor: Any) -> None:
    await ray_party(actor).handle.pid()


def _on_generators(method: str) -> Callable[[Any], Awaitable[Any] | None]:
    return lambda p: None if p.party_name == TRAINER else getattr(p, method)()
