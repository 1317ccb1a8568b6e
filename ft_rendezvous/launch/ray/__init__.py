"""Starting a run on a Ray cluster: one actor per node, each with one torchrun.

Owns the placement groups, the actors, the guard processes on the machines, and the driver that steps them. Must not
judge nodes: the run itself does that. Imports Ray only when a run is started, so that `ftr` works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ft_rendezvous.launch.run_end import RunEnd


def run(*script: str, nnodes: str = "1", **options: Any) -> RunEnd:
    """Run a training on a Ray cluster and wait for its end, as `ftr ray` does.

    `run("train.py", "--steps", "200", nnodes="2:4", spares=1)`. The options are the fields of `RayRequest`. Raises
    ConfigError for options or a cluster that cannot work.
    """
    from ft_rendezvous.launch.ray.driver import drive  # noqa: PLC0415 - Ray is an extra, and takes long to import.
    from ft_rendezvous.launch.ray.request import RayRequest  # noqa: PLC0415

    return drive(RayRequest(script=script, nnodes=nnodes, **options))
