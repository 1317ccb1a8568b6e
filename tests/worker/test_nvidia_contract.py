"""The real nvidia-resiliency-ext has the classes we use, and they do what our stand-in does."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.agent import nvidia_health
from ft_rendezvous.agent.nvidia_health import ask_nvidia

checks: Any = pytest.importorskip("nvidia_resiliency_ext.shared_utils.health_check")

NONE, RESET = 0, 1
ROOT = Path(__file__).parents[2]


class Nvml(types.ModuleType):
    """A driver of one GPU. The test sets its state."""

    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 274
    NVML_GPU_RECOVERY_ACTION_NONE = NONE
    NVML_GPU_RECOVERY_ACTION_GPU_RESET = RESET

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.action = NONE

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.10"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, _: int) -> Any:
        return types.SimpleNamespace(busId="00000000:19:00.0")

    def nvmlDeviceGetFieldValues(self, _handle: int, _fields: list[int]) -> list[Any]:
        return [types.SimpleNamespace(value=types.SimpleNamespace(uiVal=self.action))]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    nvidia_health._nic_checks.cache_clear()
    yield nvml
    nvidia_health._nic_checks.cache_clear()


@pytest.fixture
def link_downed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The counter of the one NIC, which shares its switch with the one GPU."""
    counter = tmp_path / "mlx5_0"
    counter.write_text("4\n")
    monkeypatch.setattr(checks.NicHealthCheck, "DEFAULT_LINK_DOWN_PATH", str(tmp_path / "{nic}"))
    monkeypatch.setattr(checks.NicHealthCheck, "get_ib_pci_mapping", lambda _: {"mlx5_0": "0000:20:00.0"})
    monkeypatch.setattr(checks.NicHealthCheck, "get_pci_ancestor", lambda _, bus_id: [bus_id, "0000:01:00.0"])
    return counter


@pytest.mark.parametrize("name", ["GPUHealthCheck", "NicHealthCheck"])
def test_a_check_is_made_and_called_without_arguments(name: str) -> None:
    check = getattr(checks, name)
    inspect.signature(check).bind()
    inspect.signature(check.__call__).bind(None)


def test_a_nic_check_has_what_we_call() -> None:
    nic = checks.NicHealthCheck
    inspect.signature(nic.check_pynvml_availability).bind(None)
    inspect.signature(nic.get_gpu_pci_mapping).bind(None)
    inspect.signature(nic.set_nic_device).bind(None, local_rank=0)


def test_a_gpu_that_needs_a_reset_is_found(nvml: Nvml) -> None:
    assert ask_nvidia() is None
    nvml.action = RESET
    reason = ask_nvidia()
    assert reason is not None
    assert reason.startswith("the GPU check of nvidia-resiliency-ext failed: GPU 0: Requires a reset to recover")


@pytest.mark.usefixtures("nvml")
def test_a_link_that_went_down_is_found_once(link_downed: Path) -> None:
    assert ask_nvidia() is None
    link_downed.write_text("5\n")
    reason = ask_nvidia()
    assert reason is not None
    assert reason.startswith("the NIC check of nvidia-resiliency-ext failed: GPU 0 NIC/IB mlx5_0 link down counter")
    assert ask_nvidia() is None
    link_downed.write_text("6\n")
    assert ask_nvidia() is not None


def test_our_list_of_requirements_names_all_that_the_extension_needs() -> None:
    """It is installed with `--no-deps`, so that pynvml stays away. Torch is there already."""
    needed = {
        re.split(r"[ (<>=;]", text)[0].lower() for text in importlib.metadata.requires("nvidia-resiliency-ext") or ()
    }
    listed = set(re.findall(r"^([\w-]+)", (ROOT / "requirements-nvidia.txt").read_text(), re.MULTILINE))
    assert needed - {"pynvml", "torch"} <= listed
