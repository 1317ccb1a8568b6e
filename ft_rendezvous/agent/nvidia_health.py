"""The GPU and NIC checks of nvidia-resiliency-ext, if it is installed. It is optional, and imported late.

A node is unfit only if a check says so. A check that raises says nothing about the node, and is logged.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

from ft_rendezvous.text import one_line

log = logging.getLogger("ft_rendezvous")

_PACKAGE = "nvidia_resiliency_ext"
_MODULE = f"{_PACKAGE}.shared_utils.health_check"


def ask_nvidia() -> str | None:
    """What is wrong with a GPU or a NIC of this machine, in one line, or None. May hang; does not raise."""
    try:
        nvidia = importlib.import_module(_MODULE)
    except Exception as error:  # Code of another project, at its import.
        if not (isinstance(error, ModuleNotFoundError) and error.name == _PACKAGE):
            log.warning("no GPU and NIC checks: %s cannot be imported: %s: %s", _MODULE, type(error).__name__, error)
        return None
    return _judge("GPU", nvidia, _are_gpus_healthy) or _judge("NIC", nvidia, _are_nics_healthy)


def _judge(what: str, nvidia: Any, is_healthy: Callable[[Any], bool]) -> str | None:
    with _Warnings(nvidia.__name__) as warnings:
        try:
            if is_healthy(nvidia):
                return None
        except Exception as error:  # Code of another project, on hardware that may be broken.
            log.warning("the %s check failed, which says nothing about the node: %s", what, error, exc_info=True)
            return None
    return f"the {what} check of nvidia-resiliency-ext failed: {warnings.first or 'it gives no reason'}"


def _are_gpus_healthy(nvidia: Any) -> bool:
    return nvidia.GPUHealthCheck()() is not False


def _are_nics_healthy(nvidia: Any) -> bool:
    is_healthy = all(check() is not False for check in _nic_checks(nvidia))
    if not is_healthy:
        # A check that has failed fails for ever. New checks count from here: a link that went down is reported once.
        _nic_checks.cache_clear()
    return is_healthy


@functools.cache
def _nic_checks(nvidia: Any) -> list[Callable[[], bool]]:
    """One check for the NIC of each GPU.

    The checks are kept: a check compares how often its link went down with the count of its last call. Its first call
    only takes the count.
    """
    probe = nvidia.NicHealthCheck()
    if not probe.check_pynvml_availability():
        return []
    checks = []
    for gpu in probe.get_gpu_pci_mapping():
        check = nvidia.NicHealthCheck()
        check.set_nic_device(local_rank=gpu)
        if check.nic_name is not None:
            checks.append(check)
    return checks


class _Warnings(logging.Handler):
    """Catches the first warning of a logger: the checks log their reason and return only a bool."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(name)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or one_line(record.getMessage())

    def __enter__(self) -> _Warnings:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
