"""The training script of the demo: a small DistributedDataParallel training that resumes from its checkpoint.

The data depend on step and rank alone. So at the end, rank 0 can compute the weights of an undisturbed run, and report
how far the real ones are from them.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ft_rendezvous.cli.demo.step_reports import StepReport, append_report

FEATURES = 8
BATCH_SIZE = 16


@dataclass(frozen=True)
class Job:
    directory: Path
    steps: int
    step_delay_s: float
    checkpoint_every: int

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint.pt"


def main() -> None:
    job = parse_job()
    dist.init_process_group("gloo")
    try:
        train(job)
    finally:
        dist.destroy_process_group()


def parse_job() -> Job:
    parser = argparse.ArgumentParser(description=__doc__)
    # Positions, not options: torchrun would take an option for an abbreviation of its own.
    parser.add_argument("directory", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("step_delay_s", type=float)
    parser.add_argument("checkpoint_every", type=int)
    given = parser.parse_args()
    return Job(given.directory, given.steps, given.step_delay_s, given.checkpoint_every)


def train(job: Job) -> None:
    """Train from the checkpoint to the last step, and report each step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer = new_training()
    resumed_at = load_checkpoint(job.checkpoint, model, optimizer)
    parallel = DistributedDataParallel(model)

    def tell(step: int, drift: float | None = None) -> None:
        append_report(
            job.directory / "steps.jsonl",
            StepReport(
                node=f"node-{os.environ['FT_NODE_INFRA_RANK']}",
                cycle_id=int(os.environ["FT_CYCLE_ID"]),
                rank=rank,
                step=step,
                resumed_at=resumed_at,
                time_ns=time.time_ns(),
                drift=drift,
            ),
        )

    tell(resumed_at)
    for step in range(resumed_at + 1, job.steps + 1):
        optimizer.zero_grad()
        inputs, targets = make_batch(step, rank)
        nn.functional.mse_loss(parallel(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0 and step % job.checkpoint_every == 0:
            save_checkpoint(job.checkpoint, step, model, optimizer)
        tell(step)
        time.sleep(job.step_delay_s)
    if rank == 0:
        tell(job.steps, drift=distance(model, train_undisturbed(job.steps, world_size)))
    dist.barrier()


def new_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, the same in every process. Momentum makes the optimizer's state matter."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def make_batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step * 10_007 + rank)
    inputs = torch.randn(BATCH_SIZE, FEATURES, generator=generator)
    noise = torch.randn(BATCH_SIZE, 1, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True) + 0.1 * noise


def save_checkpoint(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint in one step: a reader sees the whole old one or the whole new one."""
    draft = path.with_suffix(f".{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step of the checkpoint; 0 without a checkpoint."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def train_undisturbed(steps: int, world_size: int) -> nn.Module:
    """The same training in one process: the mean over all ranks' batches, without any restart."""
    model, optimizer = new_training()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        batches = [make_batch(step, rank) for rank in range(world_size)]
        inputs = torch.cat([batch[0] for batch in batches])
        targets = torch.cat([batch[1] for batch in batches])
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two models' weights."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs)


if __name__ == "__main__":
    main()
