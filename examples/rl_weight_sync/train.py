"""Trains a small policy in torchrun, and brings its weights to two generators on Ray after each step.

Rank 0 drives the updates. Generation goes on all the time, with the generators that may serve.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from generator import ANSWER_SIZE, PROMPT_SIZE, build_policy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from weight_sync import Trainer, WeightSync

from ft_rendezvous.updates import Party, PartyState
from ft_rendezvous.worker import UpdateReport

GENERATORS = ("gen-0", "gen-1")
VICTIM = GENERATORS[1]


class Training:
    """One rank of the training. All ranks do the same steps, for as long as rank 0 says."""

    def __init__(self, checkpoint: Path) -> None:
        torch.manual_seed(0)
        self.policy = build_policy()
        self.step = 0
        self._checkpoint = checkpoint
        self._load()
        self._parallel = DistributedDataParallel(self.policy)
        self._optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.05)

    def train(self) -> float:
        self.step += 1
        data = torch.Generator().manual_seed(self.step * 10_007 + dist.get_rank())
        prompts = torch.randn(64, PROMPT_SIZE, generator=data)
        loss = nn.functional.mse_loss(self._parallel(prompts), prompts[:, :ANSWER_SIZE])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def save(self) -> None:
        """Write to another file, then replace: a reader sees the old checkpoint or the new one, never a part."""
        draft = self._checkpoint.with_name(f"{self._checkpoint.name}.{os.getpid()}")
        torch.save({"step": self.step, "policy": self.policy.state_dict()}, draft)
        draft.replace(self._checkpoint)

    def _load(self) -> None:
        if self._checkpoint.exists():
            saved = torch.load(self._checkpoint)
            self.step = saved["step"]
            self.policy.load_state_dict(saved["policy"])


def goes_on(decision: bool) -> bool:
    """What rank 0 has decided."""
    flag = torch.tensor([int(decision)])
    dist.broadcast(flag, src=0)
    return bool(flag.item())


class Rollouts:
    """Asks all generators that may serve, again and again, and counts their answers."""

    def __init__(self, sync: WeightSync) -> None:
        self._sync = sync
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            serving = self._sync.fleet.serving()
            await asyncio.gather(*(self._ask(party) for party in serving))
            await asyncio.sleep(0.01)

    async def _ask(self, party: Party) -> None:
        try:
            answers = await party.handle.generate(torch.randn(4, PROMPT_SIZE))
        except Exception as error:  # The fleet judges it. A generator that is replaced meanwhile is another party.
            if party in self._sync.fleet.serving():
                self._sync.fleet.mark_failed(party.name, error)
        else:
            self.answers[party.name] += 0 if answers is None else len(answers)


async def drive(training: Training, options: argparse.Namespace) -> None:
    """Rank 0: train, update the generators, and replace those that are dead."""
    trainer = Trainer(training.policy, str(ray.util.get_node_ip_address()))
    sync = WeightSync(trainer, GENERATORS, step_timeout_s=options.step_timeout_s)
    await sync.wait_until_ready()
    rollouts = Rollouts(sync)
    asking = asyncio.create_task(rollouts.run())
    replacing: dict[str, asyncio.Task[None]] = {}
    tell(f"begins after step {training.step} with {dist.get_world_size()} workers")
    # Training goes on until the last replacement has got its weights.
    while await asyncio.to_thread(goes_on, training.step < options.steps or bool(replacing)):
        loss = await asyncio.to_thread(training.train)
        if training.step == options.kill_at:
            trainer.midway = partial(kill_victim, sync)
        stale = [name for name, task in replacing.items() if task.done()]
        report = await sync.update(training.step)
        training.save()
        tell_update(training.step, loss, report, sync, rollouts)
        for name in stale:
            replacing.pop(name).result()
        for name in sync.names_of(PartyState.DEAD):
            replacing[name] = asyncio.create_task(replace(sync, name))
        await asyncio.sleep(options.step_s)
    asking.cancel()
    await asyncio.wait([asking])
    await check(sync)
    sync.close()


def kill_victim(sync: WeightSync) -> None:
    tell(f"{VICTIM} is killed in the middle of the transfer")
    ray.kill(sync.actors[VICTIM])


async def replace(sync: WeightSync, name: str) -> None:
    tell(f"{name} is dead; another one is started")
    await sync.replace(name)
    tell(f"{name} is back; it is stale, and does not serve before an update has reached it")


async def check(sync: WeightSync) -> None:
    """All generators have the weights of the trainer."""
    wanted = sync.trainer.checksum()
    found = {party.name: await party.handle.checksum() for party in sync.fleet.serving()}
    if found != dict.fromkeys(GENERATORS, wanted):
        raise RuntimeError(f"the trainer has weights {wanted}, and the generators have {found}")
    tell(f"all generators serve the trainer's weights: {wanted}")


def tell_update(step: int, loss: float, report: UpdateReport, sync: WeightSync, rollouts: Rollouts) -> None:
    serving = " and ".join(party.name for party in sync.fleet.serving(step))
    tries = f" in {report.attempts} tries" if report.attempts > 1 else ""
    answers = ", ".join(f"{name} {rollouts.answers[name]}" for name in GENERATORS)
    tell(f"step {step}, loss {loss:.3f}: version {step} is on {serving} after {report.duration_s:.2f} s{tries}")
    tell(f"    answers so far: {answers}")


def tell(text: str) -> None:
    print(text, flush=True)


@contextmanager
def ray_of(address: str) -> Iterator[None]:
    """Connect to a cluster, or start a small one on this machine."""
    own: Any = {} if address else {"num_cpus": 1, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield
    finally:
        ray.shutdown()


def main() -> None:
    options = parse_options()
    dist.init_process_group("gloo")
    training = Training(options.checkpoint)
    if dist.get_rank() == 0:
        with ray_of(options.ray):
            asyncio.run(drive(training, options))
    else:
        while goes_on(True):
            training.train()
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="how many steps to train at least")
    parser.add_argument("--kill-at", type=int, help=f"kill {VICTIM} in the transfer after this step")
    parser.add_argument("--ray", default="", help="the address of a Ray cluster; without it, one is started here")
    parser.add_argument("--checkpoint", type=Path, default=Path("policy.pt"))
    parser.add_argument("--step-s", type=float, default=1.0, help="a pause after each step")
    parser.add_argument("--step-timeout-s", type=float, default=30.0, help="of a step of an update")
    return parser.parse_args()


if __name__ == "__main__":
    main()
