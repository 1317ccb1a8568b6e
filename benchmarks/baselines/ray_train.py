"""Ray Train v2: a TorchTrainer that restarts its workers after any failure.

`python -m benchmarks.baselines.ray_train ADDRESS WORKERS FOLDER OPTION...` trains `benchmarks.train_plainly` with these
options on a cluster, one worker to a CPU. All settings of Ray and of Ray Train are the defaults.

The package is optional (the extra `bench`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import train_plainly

CONTENDER = "Ray Train"
"""Its name in result files; people read it with the version."""
PACKAGE = "ray[train]"
INSTALL = "pip install 'ft-rendezvous[bench]'"
_NEEDED = ("ray", "fsspec", "pandas", "pyarrow", "pydantic", "requests")
"""What Ray Train imports beyond the core of Ray, which may be there without it."""


def installed_version() -> str | None:
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    return importlib.metadata.version("ray")


def command(address: str, workers: int, folder: str, options: Sequence[str]) -> list[str]:
    """A driver that trains on the cluster until it is ended."""
    return [sys.executable, "-m", "benchmarks.baselines.ray_train", address, str(workers), folder, *options]


def main(address: str, workers: str, folder: str, *options: str) -> None:
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # It is the default of newer versions only.
    import ray  # noqa: PLC0415 - the package is optional
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchConfig, TorchTrainer  # noqa: PLC0415

    ray.init(address, log_to_driver=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={"options": list(options)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=int(workers), resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="benchmark", storage_path=folder, failure_config=FailureConfig(max_failures=-1)),
    )
    trainer.fit()


def train(config: dict[str, Any]) -> None:
    """In a worker, which has its process group already."""
    train_plainly.train(train_plainly.parse_options(config["options"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
