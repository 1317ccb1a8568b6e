"""Machines, as far as the network knows: namespaces with addresses, hosts files and name servers of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

HAS_NETWORKS = os.geteuid() == 0 and shutil.which("ip") is not None
NO_NETWORKS = "network namespaces need root and: apt-get install iproute2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)


class Machine:
    """One namespace: an address on the wire, and a hosts file of its own. No name server answers there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.space = f"ftd{secrets.token_hex(3)}{number}"
        self.wire = f"v{secrets.token_hex(4)}"
        self.address = f"10.213.0.{number}"
        self.etc = Path("/etc/netns") / self.space

    @property
    def enter(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.space)

    def set_up(self) -> None:
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "set", "lo", "up")
        self.etc.mkdir(parents=True)
        (self.etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self.know()

    def know(self, *lines: str) -> None:
        """What its hosts file says, beside the names that every machine knows."""
        usual = ["127.0.0.1 localhost", f"{self.address} {socket.gethostname()}"]
        usual += ["10.213.0.1 n1", "10.213.0.2 n2"]
        (self.etc / "hosts").write_text("\n".join([*usual, *lines, ""]))

    def plug_in(self) -> None:
        """Give the wire, which must be there, its address."""
        ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", self.wire)
        ip("-n", self.space, "link", "set", self.wire, "up")

    def tear_down(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.space], check=False, timeout=20)
        shutil.rmtree(self.etc, ignore_errors=True)


class Switch:
    """Connects machines. One that is cut off keeps its link and its route, and every packet of it is lost."""

    def __init__(self, *machines: Machine) -> None:
        self._machines = machines
        self._space = f"fts{secrets.token_hex(3)}"

    def __enter__(self) -> Switch:
        try:
            ip("netns", "add", self._space)
            ip("-n", self._space, "link", "add", "switch", "type", "bridge")
            ip("-n", self._space, "link", "set", "switch", "up")
            for machine in self._machines:
                machine.set_up()
                end = ("type", "veth", "peer", machine.wire, "netns", self._space)
                ip("link", "add", machine.wire, "netns", machine.space, *end)
                machine.plug_in()
                ip("-n", self._space, "link", "set", machine.wire, "up")
                self.connect(machine)
        except BaseException:
            self.tear_down()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.tear_down()

    def cut_off(self, machine: Machine) -> None:
        ip("-n", self._space, "link", "set", machine.wire, "nomaster")

    def connect(self, machine: Machine) -> None:
        ip("-n", self._space, "link", "set", machine.wire, "master", "switch")

    def tear_down(self) -> None:
        for machine in self._machines:
            machine.tear_down()
        subprocess.run(["ip", "netns", "delete", self._space], check=False, timeout=20)
