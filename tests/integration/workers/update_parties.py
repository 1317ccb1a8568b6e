"""Trains a few steps and updates two parties after each. In some cycles a party fails, and too few are left.

usage: update_parties.py LAST_STEP SAVED_STEP_FILE

Lines are as those of train.py. Cycle 1 asks for the restart by a setting of the fleet, later ones by default.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ft_rendezvous import worker
from ft_rendezvous.updates import Fleet, Party, Update

FAILURES = {1: 2, 2: 4}
"""In which cycle the update to which version fails on the second party."""


class PlainGenerator:
    """Blocking methods of an object in this process."""

    def __init__(self, failing_version: int | None = None) -> None:
        self._failing_version = failing_version
        self.version = 0
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def receive(self, version: int) -> None:
        self.former, self.version = self.version, version
        if version == self._failing_version:
            raise ConnectionError("the link is down")

    def restore(self) -> None:
        self.version = self.former


async def flow(update: Update) -> None:
    await update.step("pause", lambda p: p.pause(), finish=lambda p: p.resume())
    await update.step("transfer", lambda p: p.receive(update.version), undo=lambda p: p.restore())


def main() -> None:
    last_step, saved = int(sys.argv[1]), Path(sys.argv[2])
    info = worker.info()
    assert info is not None
    who = f"cycle={info.cycle_id} rank={info.rank}"
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    targets = [PlainGenerator(), PlainGenerator(FAILURES.get(info.cycle_id))]
    resort: dict[str, Any] = {"on_unrecoverable": "restart"} if info.cycle_id == 1 else {}
    parties = [Party(f"gen-{number}", target) for number, target in enumerate(targets)]
    fleet = Fleet(parties, min_parties=2, **resort)
    first = int(saved.read_text()) + 1 if saved.exists() else 1
    for step in range(first, last_step + 1):
        total = torch.tensor([info.rank + 1])
        dist.all_reduce(total)
        if info.rank == 0:
            asyncio.run(fleet.update(flow, version=step))
            assert [(target.version, target.is_paused) for target in targets] == [(step, False)] * 2
            saved.write_text(str(step))
        print(f"ft-test step {who} step={step} sum={int(total)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print(f"ft-test end {who}", flush=True)


if __name__ == "__main__":
    main()
