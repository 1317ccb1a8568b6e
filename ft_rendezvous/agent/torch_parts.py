"""What this package needs from torch's elastic agent, as a list that is checked before anything else happens.

Imports nothing of torch when it is loaded: it must work with a torch that has moved or renamed a part.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from ft_rendezvous.errors import ConfigError

TESTED_TORCH = "2.8 to 2.15"

_ELASTIC = "torch.distributed.elastic"
PARTS: dict[str, tuple[str, ...]] = {
    "torch.distributed": ("DistStoreError", "Store"),
    f"{_ELASTIC}.agent.server.api": (
        "RunResult.failures",
        "RunResult.state",
        "SimpleElasticAgent._monitor_workers",
        "SimpleElasticAgent._restart_workers",
        "SimpleElasticAgent._shutdown",
        "SimpleElasticAgent._start_workers",
        "SimpleElasticAgent.get_worker_group",
        "SimpleElasticAgent.run",
        "WorkerGroup.spec",
        "WorkerGroup.workers",
        "WorkerSpec.local_world_size",
        "WorkerSpec.rdzv_handler",
        "WorkerSpec.role",
        "WorkerState.FAILED",
        "WorkerState.HEALTHY",
        "WorkerState.SUCCEEDED",
        "WorkerState.UNHEALTHY",
        "_RoleInstanceInfo.serialize",
        "_TERMINAL_STATE_SYNC_ID",
    ),
    f"{_ELASTIC}.agent.server.local_elastic_agent": ("LocalElasticAgent._pcontext",),
    f"{_ELASTIC}.events": ("NodeState", "construct_and_record_rdzv_event"),
    f"{_ELASTIC}.multiprocessing": ("DefaultLogsSpecs.reify", "LogsDest", "SignalException", "Std", "to_map"),
    f"{_ELASTIC}.multiprocessing.api": (
        "DefaultLogsSpecs._local_ranks_filter",
        "DefaultLogsSpecs._redirects",
        "DefaultLogsSpecs._tee",
        "DefaultLogsSpecs.root_log_dir",
        "PContext.error_files",
        "PContext.stderrs",
        "PContext.stdouts",
        "_terminate_process_handler",
    ),
    f"{_ELASTIC}.multiprocessing.errors": ("ChildFailedError.get_first_failure",),
    f"{_ELASTIC}.rendezvous.api": (
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousError",
        "RendezvousGracefulExitError",
        "RendezvousHandler",
        "RendezvousInfo",
        "RendezvousParameters",
        "RendezvousStoreInfo",
    ),
    "torch.optim.optimizer": ("register_optimizer_step_post_hook",),
    f"{_ELASTIC}.utils.store": ("_LAST_MEMBER_CHECKIN", "_NUM_MEMBERS"),
}
"""By module: its names, and the attributes of its classes, that `agent/` and the logs specs use."""


def check_torch() -> None:
    """Raise ConfigError if this torch lacks a part."""
    missing = missing_parts()
    if missing:
        version = importlib.import_module("torch").__version__
        raise ConfigError(
            f"torch {version} lacks what ft-rendezvous builds on: {', '.join(missing)}. ft-rendezvous was tested with "
            f"torch {TESTED_TORCH}: install one of these, or a newer ft-rendezvous"
        )


def missing_parts() -> list[str]:
    """The parts that this torch lacks; empty for a torch that this package knows."""
    missing: list[str] = []
    for module_name, names in PARTS.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            missing.append(module_name)
            continue
        missing += [f"{module_name}.{name}" for name in names if not _has(module, name)]
    return missing


def _has(module: Any, name: str) -> bool:
    owner_name, _, attribute = name.partition(".")
    owner = getattr(module, owner_name, None)
    return owner is not None and (not attribute or hasattr(owner, attribute) or _sets(owner, attribute))


def _sets(owner: Any, attribute: str) -> bool:
    """Whether the instances of a class have this attribute: a field, a slot, or a name that the initializer uses."""
    if attribute in getattr(owner, "__annotations__", {}):
        return True
    initializers = (vars(each).get("__init__") for each in inspect.getmro(owner))
    return any(inspect.isfunction(each) and attribute in each.__code__.co_names for each in initializers)
