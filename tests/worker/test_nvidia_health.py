"""The checks of nvidia-resiliency-ext, with a stand-in. `test_nvidia_contract` uses the real ones."""

from __future__ import annotations

import logging
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from ft_rendezvous.agent import health
from ft_rendezvous.agent.health import check_health

NAME = "nvidia_resiliency_ext.shared_utils.health_check"
PATIENCE_S = 120.0


class StandIn(types.ModuleType):
    """Two GPUs with a NIC each. The test sets what the checks find."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self.ask_gpu: Callable[[], bool] = lambda: True
        self.ask_nic: Callable[[int], bool] = lambda _: True
        self.has_pynvml = True
        self.has_nics = True
        self.nics: list[int] = []
        stand_in = self

        class GPUHealthCheck:
            def __call__(self) -> bool:
                return stand_in.ask_gpu()

        class NicHealthCheck:
            gpu: int | None = None
            nic_name: str | None = None

            def check_pynvml_availability(self) -> bool:
                return stand_in.has_pynvml

            def get_gpu_pci_mapping(self) -> dict[int, str]:
                return {0: "0000:19:00.0", 1: "0000:20:00.0"}

            def set_nic_device(self, local_rank: int) -> None:
                self.gpu = local_rank
                self.nic_name = f"mlx5_{local_rank}" if stand_in.has_nics else None
                stand_in.nics.append(local_rank)

            def __call__(self) -> bool:
                assert self.gpu is not None
                return stand_in.ask_nic(self.gpu)

        self.GPUHealthCheck, self.NicHealthCheck = GPUHealthCheck, NicHealthCheck


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    stand_in = StandIn()
    device = tmp_path / "nvidiactl"
    device.touch()
    monkeypatch.setattr(health, "_GPU_DEVICE", device)
    monkeypatch.setitem(sys.modules, NAME, stand_in)
    return stand_in


def check() -> str | None:
    return check_health(None, PATIENCE_S, gpu=True)


def fail(*_: object) -> bool:
    raise RuntimeError("libnvidia-ml is too old")


def find_fault(*_: object) -> bool:
    logger = logging.getLogger(NAME)
    logger.info("looking")
    logger.warning("GPU 3: Requires a reset\nto recover.")
    logger.warning("Error during NVML shutdown")
    return False


def test_all_is_well(stand_in: StandIn) -> None:
    assert check() is None
    assert check() is None
    assert stand_in.nics == [0, 1], "a check is kept, for it compares with what it saw before"


def test_a_bad_gpu_is_told_with_the_reason_that_was_logged(stand_in: StandIn) -> None:
    stand_in.ask_gpu = find_fault
    assert check() == "the GPU check of nvidia-resiliency-ext failed: GPU 3: Requires a reset to recover."
    assert logging.getLogger(NAME).handlers == []


def test_a_bad_nic_is_told_once(stand_in: StandIn) -> None:
    assert check() is None
    stand_in.ask_nic = lambda gpu: gpu != 1
    assert check() == "the NIC check of nvidia-resiliency-ext failed: it gives no reason"
    stand_in.ask_nic = lambda _: True
    assert check() is None
    assert stand_in.nics == [0, 1, 0, 1], "new checks, that count from here"


@pytest.mark.parametrize("missing", ["has_pynvml", "has_nics"])
def test_where_there_is_none_no_nic_is_asked(missing: str, stand_in: StandIn) -> None:
    setattr(stand_in, missing, False)
    stand_in.ask_nic = fail
    assert check() is None


@pytest.mark.parametrize("what", ["GPU", "NIC"])
def test_a_check_that_raises_is_a_warning(what: str, stand_in: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    if what == "GPU":
        stand_in.ask_gpu = fail
    else:
        stand_in.ask_nic = fail
    assert check() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"the {what} check failed, which says nothing about the node: libnvidia-ml is too old" in caplog.text


def test_a_gpu_check_that_raises_does_not_hide_a_bad_nic(stand_in: StandIn) -> None:
    stand_in.ask_gpu, stand_in.ask_nic = fail, find_fault
    reason = check()
    assert reason is not None
    assert reason.startswith("the NIC check")


def test_a_driver_that_does_not_answer_is_unhealthy(stand_in: StandIn) -> None:
    goes_on = threading.Event()
    stand_in.ask_gpu = goes_on.wait
    assert check_health(None, 0.0, gpu=True) == "the GPU and NIC checks have not ended within 0 s"
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "ft-health":
            thread.join()


def test_a_command_that_fails_is_reason_enough(stand_in: StandIn) -> None:
    stand_in.ask_gpu = fail
    assert check_health("exit 1", PATIENCE_S, gpu=True) == "the health check exited with 1"


def test_without_a_gpu_or_without_the_wish_nothing_is_asked(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in.ask_gpu = lambda: False
    assert check_health(None, PATIENCE_S, gpu=False) is None
    monkeypatch.setattr(health, "_GPU_DEVICE", tmp_path / "none")
    assert check() is None


@pytest.mark.usefixtures("stand_in")
def test_where_it_is_not_installed_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, NAME)
    monkeypatch.setattr(sys, "meta_path", [])
    for name in [name for name in sys.modules if name.startswith("nvidia_resiliency_ext")]:
        monkeypatch.delitem(sys.modules, name)
    assert check() is None
    assert caplog.records == []


@pytest.mark.usefixtures("stand_in")
def test_an_installation_that_is_broken_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, NAME, None)
    assert check() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"no GPU and NIC checks: {NAME} cannot be imported" in caplog.text
