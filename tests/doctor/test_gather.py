"""Facts of this machine, on any machine."""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

import pytest

from ft_rendezvous.doctor.facts import Step, Torch
from ft_rendezvous.doctor.gather import DoctorOptions, gather_facts
from ft_rendezvous.doctor.interfaces import interface_of
from ft_rendezvous.doctor.lookups import ask_all, name_of, seen_as
from ft_rendezvous.doctor.torch_probe import run_probe


def test_facts_of_this_machine() -> None:
    env = {**os.environ, "SLURMD_NODENAME": "n7", "SLURM_PROCID": "6", "FT_DOMAIN_ID": "rack1"}
    step = Step(job_id="7", step_id="0", task=6, tasks=8, hosts=())
    facts = gather_facts(DoctorOptions(host="localhost", port=29400, sizes=(4, 8)), step, env)
    assert (facts.host, facts.task, facts.infra_rank, facts.domain) == ("n7", 6, 6, "rack1")
    assert (facts.run_error, facts.node_error) == ("", "")
    assert facts.settings["nnodes"] == "4:8"
    assert facts.is_host
    assert facts.route is not None
    assert facts.route.is_loopback
    assert facts.route.interface == "lo"
    assert "127.0.0.1" in facts.endpoint.found
    assert "::ffff:127.0.0.1" in [lookup.of for lookup in facts.reverse]
    assert (facts.files_soft, facts.files_hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    software = facts.software
    assert software.executable == sys.executable
    assert software.is_registered
    assert (software.torch.error, software.torch.missing) == ("", ())
    assert software.torch.store_s is not None


@pytest.mark.parametrize(
    ("conf", "run_error", "node_error"),
    [
        ({"lease": "3"}, "the closest known one is 'lease_timeout'", ""),
        ({"config": "/no/such/file"}, "/no/such/file cannot be read", ""),
        ({"domain_from": "env:NOWHERE"}, "", "NOWHERE is not set"),
        ({"segment": "2"}, "", "needs every node's domain"),
    ],
)
def test_settings_that_cannot_work_are_facts(
    conf: dict[str, str], run_error: str, node_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ft_rendezvous.doctor.gather.run_probe", lambda *_: TORCHLESS)
    facts = gather_facts(DoctorOptions(host="localhost", port=1, sizes=(4, 4), conf=conf), None, {})
    assert run_error in facts.run_error
    assert bool(facts.run_error) == bool(run_error)
    assert node_error in facts.node_error
    assert bool(facts.node_error) == bool(node_error)


def test_is_host_wins_over_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.doctor.gather.run_probe", lambda *_: TORCHLESS)
    facts = gather_facts(DoctorOptions(host="localhost", port=1, conf={"is_host": "false"}), None, {})
    assert not facts.is_host
    assert facts.route is not None
    assert facts.route.is_here


@pytest.mark.parametrize(
    ("env", "is_host", "is_unclear"),
    [({"JOB_COMPLETION_INDEX": "0"}, True, False), ({"JOB_COMPLETION_INDEX": "1"}, False, False), ({}, False, True)],
)
def test_a_name_with_addresses_of_other_machines(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], is_host: bool, is_unclear: bool
) -> None:
    monkeypatch.setattr("ft_rendezvous.doctor.gather.run_probe", lambda *_: TORCHLESS)
    monkeypatch.setattr(
        "ft_rendezvous.doctor.gather.addresses_of",
        lambda name: ["192.0.2.1", "127.0.0.1"] if name == "train" else ["127.0.0.1"],
    )
    monkeypatch.setattr("socket.gethostname", lambda: "pod")
    facts = gather_facts(DoctorOptions(host="train", port=1), None, env)
    assert (facts.is_host, facts.is_hosting_unclear) == (is_host, is_unclear)
    assert facts.own_addresses == ("127.0.0.1",)
    assert facts.shares_endpoint
    assert facts.hosting_reason


def test_a_machine_has_an_interface_for_each_of_its_addresses() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("::ffff:127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") == ""


def test_a_lookup_that_fails_is_an_answer() -> None:
    def fail() -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    (found,) = ask_all({"nobody": fail}).values()
    assert (found.found, found.error, found.is_over) == ((), "Name or service not known", True)


def test_a_name_with_a_label_that_is_too_long_is_an_answer_too() -> None:
    (found,) = ask_all({"x": lambda: [socket.gethostbyname("a" * 100 + ".b")]}).values()
    assert found.error


def test_an_address_is_looked_up_as_a_store_sees_it() -> None:
    assert (seen_as("10.0.0.1"), seen_as("fd00::1")) == ("::ffff:10.0.0.1", "fd00::1")
    (found,) = ask_all({"127.0.0.1": name_of("127.0.0.1")}).values()
    assert found.found == ("localhost",)


def broken_torch(place: Path, code: str) -> dict[str, str]:
    (place / "torch").mkdir()
    (place / "torch" / "__init__.py").write_text(code)
    return {**os.environ, "PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ImportError('no libcudart')", "ImportError: no libcudart"),
        ("import os; os.write(2, b'Illegal instruction\\n'); os.abort()", "code -6 and said: Illegal instruction"),
        ("import sys; sys.exit(3)", "code 3 and said: nothing"),
        ("while True: pass", "has not ended within 1 s"),
    ],
)
def test_an_import_of_torch_that_goes_wrong_ends_no_other_process(tmp_path: Path, code: str, error: str) -> None:
    timeout_s = 1.0 if "while" in code else 60.0
    assert error in run_probe(broken_torch(tmp_path, code), timeout_s).error


TORCHLESS = Torch(error="not asked")
