"""A job that has lost its batch script: ended only if nobody else is left who would."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ft_rendezvous.launch import abandoned
from ft_rendezvous.launch.abandoned import Abandoned, is_abandoned, is_lost

JOB = Abandoned("42", "n1")


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ("ALLOCATED", False),
        ("MIXED+CLOUD", False),
        ("COMPLETING", False),
        ("DOWN", True),
        ("DOWN*+DRAIN", True),
        ("ALLOCATED*", True),
        ("ALLOCATED+NOT_RESPONDING", True),
    ],
)
def test_what_slurm_says_of_a_node(state: str, lost: bool) -> None:
    assert is_lost(f"NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=1 Reason=none") is lost


def test_a_node_of_which_slurm_says_nothing_is_not_lost() -> None:
    assert not is_lost("")


@pytest.fixture
def srun() -> Iterator[dict[str, str]]:
    """An srun that listens, as a task's environment names it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(listener.getsockname()[1])}


def silent() -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(listener.getsockname()[1])}


class Controller:
    """Says of a node what it is told to, look by look."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.slept = 0

    def ask(self, arguments: str) -> str:
        assert arguments == "show node n1 --oneliner"
        return f"NodeName=n1 State={self.states.pop(0) if len(self.states) > 1 else self.states[0]}"

    def sleep(self, _seconds: float) -> None:
        self.slept += 1


def test_a_job_whose_srun_lives_is_left_alone(srun: dict[str, str]) -> None:
    controller = Controller("DOWN")
    assert not is_abandoned(JOB, srun, controller.ask, controller.sleep)


def test_a_job_is_abandoned_once_slurm_too_has_lost_its_node() -> None:
    controller = Controller("ALLOCATED", "ALLOCATED", "DOWN*")
    assert is_abandoned(JOB, silent(), controller.ask, controller.sleep)
    assert controller.slept == 2


def test_a_node_that_is_cut_off_itself_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches SLURM's controller, which hears of the other node as ever."""
    monkeypatch.setattr(abandoned, "PATIENCE_S", 0.05)
    controller = Controller("ALLOCATED")
    assert not is_abandoned(JOB, silent(), controller.ask, controller.sleep)
    assert controller.slept > 0


def test_without_srun_in_the_environment_slurm_alone_is_asked() -> None:
    controller = Controller("DOWN")
    assert is_abandoned(JOB, {}, controller.ask, controller.sleep)
