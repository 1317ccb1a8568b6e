"""A training with torchft whose replica groups fail and come back one by one, while the other groups train on.

    torchrun --nnodes=6:8 --nproc-per-node=8 --max-restarts=1000 --rdzv-backend=ft --rdzv-endpoint=$HEAD:29400 \
        --rdzv-id=$JOB --rdzv-conf group_size=2,lighthouse=yes examples/train_torchft.py --steps 100000

Every group trains the same model. The ranks of a group average their gradients, then rank r of each group averages with
rank r of the others, through torchft's manager. What makes it survive the loss of a group:

- a step counts only if `should_commit` says so; after a failed collective it does not, and is done again;
- a group that comes back gets the weights from a peer (`state_dict` and `load_state_dict` of the manager);
- `attach` ends a collective that waits for a lost group as soon as the agents know of the loss.

It also runs without ft_rendezvous: `attach` does nothing then.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo, ProcessGroupNCCL

from ft_rendezvous.torchft import attach

GROUP = int(os.environ.get("REPLICA_GROUP_ID", "0"))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GLOBAL_RANK = GROUP * WORLD_SIZE + RANK


def main() -> None:
    options = parse_options()
    uses_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if uses_gpu else torch.device("cpu")
    if uses_gpu:
        torch.cuda.set_device(device)
    if WORLD_SIZE > 1:
        dist.init_process_group("nccl" if uses_gpu else "gloo")  # The ranks of this group.

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    timeout = timedelta(seconds=60)
    manager = Manager(
        pg=ProcessGroupNCCL(timeout) if uses_gpu else ProcessGroupGloo(timeout),
        state_dict=state_dict,
        load_state_dict=load_state_dict,
        min_replica_size=options.min_groups,
        replica_id=str(GROUP),  # So that it is known which member of a quorum is which group.
        init_sync=False,  # All groups begin with the same weights: the seed is the same.
    )
    attach(manager)

    if options.checkpoint is not None and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        load_state_dict(saved)
        manager.load_state_dict(saved["manager"])

    # After the last step comes a farewell: a step whose gradients are not used. A group that failed in the last step,
    # or that has just come back, gets the final weights there. Without it, it would do the last step alone.
    while manager.current_step() <= options.steps:
        optimizer.zero_grad()
        manager.start_quorum()  # Runs while this step computes.
        # Data depend on step and rank alone. A step that is done again sees the same data.
        generator = torch.Generator().manual_seed(manager.current_step() * 10_007 + GLOBAL_RANK)
        inputs = torch.randn(64, 32, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        loss.backward()
        time.sleep(options.step_s)
        average_gradients(manager, model)
        if not manager.should_commit():  # Here a group that heals gets its weights.
            continue
        is_farewell = manager.current_step() > options.steps
        if not is_farewell:
            optimizer.step()
            report("step", manager, model, options.output)
        is_due = manager.current_step() % options.save_every == 0 or is_farewell
        if is_due and options.checkpoint is not None and RANK == 0 and manager.participating_rank() == 0:
            save(options.checkpoint, {**state_dict(), "manager": manager.state_dict()})

    report("done", manager, model, options.output)
    if WORLD_SIZE > 1:
        dist.barrier()  # Rank 0 has the manager's server, which the other ranks may still need.
    manager.shutdown(wait=False)
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


def average_gradients(manager: Manager, model: nn.Module) -> None:
    """Within the group, then across groups. One tensor for all gradients: one collective per step."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if WORLD_SIZE > 1:
        dist.all_reduce(flat)
        flat /= WORLD_SIZE
    manager.allreduce(flat).wait()  # After an error it returns, too. Then `should_commit` says no.
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def report(what: str, manager: Manager, model: nn.Module, output: Path | None) -> None:
    """One line, for people and for tests. Groups at the same step have the same digest."""
    weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    fields = {
        "group": GROUP,
        "rank": RANK,
        "step": manager.current_step(),
        "groups": manager.num_participants(),
        "digest": hashlib.sha256(weights).hexdigest()[:16],
        "time": f"{time.monotonic():.3f}",
        "pid": os.getpid(),
    }
    line = " ".join([what, *(f"{name}={value}" for name, value in fields.items())])
    print(line, flush=True)
    if output is not None:
        with output.open("a") as file:
            file.write(line + "\n")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write to another file, then replace: a reader sees the old checkpoint or the new one, never a part."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(state, draft)
    draft.replace(path)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=0.0, help="how much longer a step takes, in seconds")
    parser.add_argument("--min-groups", type=int, default=1, help="with fewer groups no step counts")
    parser.add_argument("--output", type=Path, help="append the lines to this file, too")
    text = "on a disk that all nodes share; a group loads it if it comes back when no other group trains"
    parser.add_argument("--checkpoint", type=Path, help=text)
    parser.add_argument("--save-every", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    main()
