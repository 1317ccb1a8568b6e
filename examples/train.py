"""The smallest DistributedDataParallel training that survives the loss of a node.

Three things make it so, and none of them knows about ft_rendezvous:

- it saves a checkpoint every few steps, in one atomic move, where every node can read it;
- it starts by loading the newest checkpoint;
- it lets errors end the process: the agent starts it again, in a new world.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = parse_options()
    uses_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if uses_gpu else torch.device("cpu")
    if uses_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if uses_gpu else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = nn.Linear(32, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done = load(options.checkpoint, model, optimizer, device)
    parallel = DistributedDataParallel(model)
    if rank == 0:
        print(f"begins after step {done} with {dist.get_world_size()} workers", flush=True)

    for step in range(done + 1, options.steps + 1):
        # Data depend only on step and rank, so a resumed run sees the same data.
        generator = torch.Generator().manual_seed(step * 10_007 + rank)
        inputs = torch.randn(64, 32, generator=generator).to(device)
        loss = nn.functional.mse_loss(parallel(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % options.save_every == 0 or step == options.steps):
            save(options.checkpoint, step, model, optimizer)
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(options.step_s)

    dist.destroy_process_group()


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write to another file, then replace: a reader sees the old checkpoint or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """How many steps are done."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default: 10)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="on a disk all nodes share")
    parser.add_argument("--step-s", type=float, default=0.1, help="a pause per step, so that you can watch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
