"""Two machines, as far as the network knows: namespaces with a wire between them and name servers of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.doctor.conftest import Srun, lines_of
from tests.support.machines import HAS_NETWORKS, NO_NETWORKS, Machine, ip

pytestmark = pytest.mark.skipif(not HAS_NETWORKS, reason=NO_NETWORKS)

SLOW_DNS = Path(__file__).parent / "slow_dns.py"
PORT = 29400
LIFELINE_PORT = 29555
QUICK = {"RES_OPTIONS": "timeout:2 attempts:1"}
"""A name server that says nothing costs two seconds instead of ten."""


class NamedMachine(Machine):
    """A machine with a name server of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._server: subprocess.Popen[str] | None = None

    def serve_names(self, delay: str) -> None:
        self.stop_serving()
        command = [*self.enter, sys.executable, str(SLOW_DNS), delay]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def stop_serving(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            self._server = None

    def tear_down(self) -> None:
        self.stop_serving()
        super().tear_down()


Pair = tuple[NamedMachine, NamedMachine]


@pytest.fixture
def machines() -> Iterator[Pair]:
    first, second = NamedMachine(1), NamedMachine(2)
    try:
        for machine in (first, second):
            machine.set_up()
        ip("link", "add", first.wire, "netns", first.space, "type", "veth", "peer", second.wire, "netns", second.space)
        for machine in (first, second):
            machine.plug_in()
        yield first, second
    finally:
        first.tear_down()
        second.tear_down()


def srun(shell: Shell, machines: Pair, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The doctor on both; what its first task said. Both have exited with one code, and the second said nothing."""
    step = Srun(shell, 2, hosts="n[1-2]", prefixes={number: machine.enter for number, machine in enumerate(machines)})
    arguments = arguments or ("--endpoint", f"n1:{PORT}")
    done = step.run(*arguments, env={0: QUICK, 1: QUICK})
    assert done[0].returncode == done[1].returncode, done[0].stdout + done[1].stderr
    assert (done[1].stdout, done[1].stderr) == ("", "")
    return done[0]


def statuses(done: subprocess.CompletedProcess[str], check: str) -> list[str]:
    return [line.split()[0] for line in lines_of(done, check)]


def test_a_name_server_that_says_nothing_and_the_remedy_that_is_reported(shell: Shell, machines: Pair) -> None:
    for machine in machines:
        machine.serve_names("never")
    ill = srun(shell, machines)
    assert ill.returncode == 1
    assert statuses(ill, "client-dns") == ["fail"], ill.stdout
    # Never sooner than the resolver gives up.
    assert re.search(
        r"n1: the store host looks up 2 clients in up to [2-9]\.\d s each \(::ffff:10\.213\.0\.", ill.stdout
    )
    assert statuses(ill, "reverse-dns") == ["fail"]
    assert statuses(ill, "store-start") == ["fail"], "a TCPStore is as slow as the doctor says"
    assert statuses(ill, "reach") == ["pass"]
    assert f"through {machines[1].wire}" in ill.stdout
    assert "also in the form ::ffff:a.b.c.d" in ill.stdout

    for machine in machines:
        machine.know("::ffff:127.0.0.1 localhost", "::ffff:10.213.0.1 n1", "::ffff:10.213.0.2 n2")
    mended = srun(shell, machines)
    assert mended.returncode == 0, mended.stdout
    assert statuses(mended, "store-start") == []


def test_a_name_server_that_is_slow_is_warned_of(shell: Shell, machines: Pair) -> None:
    for machine in machines:
        machine.serve_names("0.2")
    done = srun(shell, machines)
    assert done.returncode == 0, done.stdout
    assert (statuses(done, "client-dns"), statuses(done, "reverse-dns")) == (["warn"], ["warn"])


def test_a_name_that_means_another_address_on_one_machine(shell: Shell, machines: Pair) -> None:
    """No machine has 10.213.0.99; fd00::1 is an address of the first machine to which the second has no route."""
    first, second = machines
    for machine in machines:
        machine.serve_names("0")
    first.know("10.213.0.1 head")
    second.know("10.213.0.99 head")
    lost = srun(shell, machines, "--endpoint", f"head:{PORT}")
    assert lost.returncode == 1
    assert statuses(lost, "reach") == ["fail", "pass"], lost.stdout
    assert lines_of(lost, "reach")[0].split()[2:4] == ["n2:", f"head:{PORT}"]

    second.know("10.213.0.1 head", "fd00::1 head")
    half = srun(shell, machines, "--endpoint", f"head:{PORT}")
    assert half.returncode == 0, half.stdout
    assert statuses(half, "families") == ["warn", "pass"]
    assert "fd00::1 does not work" in lines_of(half, "families")[0]


def test_a_firewall_that_lets_only_the_endpoint_through(shell: Shell, machines: Pair) -> None:
    """The second machine has no route for packets to the port of the lifelines, and one for all others."""
    for machine in machines:
        machine.serve_names("0")
    rule = ("ipproto", "tcp", "dport", str(LIFELINE_PORT), "prohibit")
    ip("-n", machines[1].space, "rule", "add", *rule)
    arguments = ("--endpoint", f"n1:{PORT}", "--rdzv-conf")
    done = srun(shell, machines, *arguments, f"lifeline_port={LIFELINE_PORT}")
    assert done.returncode == 0, done.stdout
    assert statuses(done, "reach") == ["pass"]
    assert statuses(done, "lifeline") == ["warn", "pass"], done.stdout
    assert lines_of(done, "lifeline")[0].split()[2:5] == ["n2:", "port", str(LIFELINE_PORT)]
    assert lines_of(done, "lifeline")[1].split()[2:5] == ["n1:", "port", str(LIFELINE_PORT)]

    ip("-n", machines[1].space, "rule", "delete", *rule)
    opened = srun(shell, machines, *arguments, f"lifeline_port={LIFELINE_PORT}")
    assert statuses(opened, "lifeline") == ["pass"], opened.stdout


def test_machines_that_each_take_themselves_for_the_endpoint(shell: Shell, machines: Pair) -> None:
    """Debian maps a machine's own name to 127.0.1.1; a copied hosts file gives that to every machine."""
    for machine in machines:
        machine.serve_names("0")
        machine.know("127.0.1.1 head")
    done = srun(shell, machines, "--endpoint", f"head:{PORT}")
    assert done.returncode == 1
    assert "each would host a run" in lines_of(done, "address")[0]
