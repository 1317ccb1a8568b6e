"""The training of `examples/train_torchft.py` without torchft: all ranks are one world; a restart loads a checkpoint.

The same model, the same data and the same length of a step. A `group` in its lines is a rank: with one node to a group
and one worker to a node that is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    options = parse_options()
    dist.init_process_group("gloo")
    train(options)


def train(options: argparse.Namespace) -> None:
    """Train in the process group that is there."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < options.steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step * 10_007 + rank)
        inputs = torch.randn(64, 32, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        time.sleep(options.step_s)
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()
        step += 1
        report(step, model, options.output, rank, world_size)
        if rank == 0 and step % options.save_every == 0:
            draft = options.checkpoint.with_name(f"{options.checkpoint.name}.{os.getpid()}")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
            draft.replace(options.checkpoint)


def report(step: int, model: nn.Module, output: Path, rank: int, world_size: int) -> None:
    """In the words of the example."""
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    digest = hashlib.sha256(weights).hexdigest()[:16]
    place = f"group={rank} rank=0 step={step} groups={world_size}"
    with output.open("a") as file:
        file.write(f"step {place} digest={digest} time={time.monotonic():.3f} pid={os.getpid()}\n")


def parse_options(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
