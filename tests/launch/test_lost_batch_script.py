"""A job that has lost its batch script: it is ended only if nothing else would end it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch import lost_batch_script
from ft_rendezvous.launch.lost_batch_script import REFUSED_TIMEOUT_S, Srun, is_abandoned, is_lost


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


class Cluster:
    """Tells what is found, look by look; the last of it for ever. Its time passes with every look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sruns: list[Srun], states: list[str | None]) -> None:
        self.sruns, self.states, self.now, self.looks = sruns, states, 0.0, 0
        monkeypatch.setattr(lost_batch_script, "_look_for_srun", lambda _env: self._next(self.sruns))

    def _next(self, items: list) -> object:  # type: ignore[type-arg]
        return items.pop(0) if len(items) > 1 else items[0]

    def ask(self, arguments: str) -> str:
        assert arguments == "show node n1 --oneliner"
        state = self._next(self.states)
        if state is None:
            raise ConfigError("slurmctld does not answer")
        return f"NodeName=n1 State={state}"

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.looks += 1
        assert self.looks < 1_000, "it would look for ever"

    def is_abandoned(self) -> bool:
        return is_abandoned("n1", {}, self.ask, self.sleep, lambda: self.now)


def test_a_job_whose_srun_lives_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [Srun.THERE], ["DOWN"])
    assert not cluster.is_abandoned()
    assert cluster.looks == 0, "and at once"


def test_a_job_is_abandoned_once_slurm_too_has_lost_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [Srun.SILENT], ["ALLOCATED", None, "ALLOCATED", "DOWN*"])
    assert cluster.is_abandoned()
    assert cluster.looks == 3


def test_a_machine_that_refuses_is_lost_as_soon_as_slurm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [Srun.REFUSED], ["ALLOCATED", "DOWN*"])
    assert cluster.is_abandoned()
    assert cluster.looks == 1


def test_a_node_that_was_cut_off_itself_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches SLURM's controller, which hears of the other node as ever."""
    cluster = Cluster(monkeypatch, [Srun.SILENT] * 50 + [Srun.THERE], ["ALLOCATED"])
    assert not cluster.is_abandoned()
    assert cluster.looks == 50


def test_a_machine_that_is_back_without_srun_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [Srun.SILENT, Srun.REFUSED], ["ALLOCATED"])
    assert cluster.is_abandoned()
    assert cluster.now >= REFUSED_TIMEOUT_S


def test_a_refusal_counts_only_if_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [Srun.REFUSED, Srun.REFUSED, Srun.THERE], ["ALLOCATED"])
    assert not cluster.is_abandoned()


# --- srun's port ------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def env_of(listener: socket.socket) -> dict[str, str]:
    return {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(listener.getsockname()[1])}


def test_what_is_found_where_srun_should_be(listener: socket.socket) -> None:
    env = env_of(listener)
    assert lost_batch_script._look_for_srun(env) is Srun.THERE
    listener.close()
    assert lost_batch_script._look_for_srun(env) is Srun.REFUSED
    assert lost_batch_script._look_for_srun({}) is Srun.SILENT
