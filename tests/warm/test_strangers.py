"""Every process of the machine's network namespace finds the socket. Only workers of the agent are served by it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from ft_rendezvous.warm import client
from tests.warm.stage import COLD_WARNING, Stage

LISTENS = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
data, fds, _, _ = socket.recv_fds(connection, 1 << 16, 50)
print(len(data), len(fds), flush=True)
"""


def visible_name(stage: Stage) -> str:
    """What every process finds in /proc/net/unix."""
    with open("/proc/net/unix", encoding="utf-8") as sockets:
        shown = [line.split()[-1] for line in sockets if "@ft-rendezvous/nursery/" in line]
    return next(name for name in shown if stage.nursery.address.startswith(name))


def test_a_process_that_knows_the_visible_name_alone_gets_no_worker(light_stage: Stage) -> None:
    """Root of a container with the host's network is the same user for the kernel."""
    mark = light_stage.folder / "ran"
    script = str(light_stage.script(f"open({str(mark)!r}, 'w')"))
    request = client.make_request((True, False, [script]), ["-u", script], [0, 1, 2])
    name, pid, secret = client.parse_address(light_stage.nursery.address)
    assert secret not in visible_name(light_stage)
    for wrong in ("", "0" * len(secret), secret[:-1]):
        answer, is_said = client.ask(f"{name}:{pid}:{wrong}", request | {"is_leader": True}, [0, 1, 2])
        assert "secret" in str(answer)
        assert is_said
    assert not mark.exists()


def test_a_process_that_listens_in_place_of_the_nursery_gets_nothing(light_stage: Stage) -> None:
    """It would get the environment, the working directory and all open files of a worker."""
    name = visible_name(light_stage)
    light_stage.nursery.end()
    stranger = subprocess.Popen([sys.executable, "-c", LISTENS, name[1:]], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    try:
        assert stranger.stdout.readline() == "listens\n"
        started = light_stage.run("print('ran')")
        assert (started.wait(), started.text) == (0, "ran\n")
        assert COLD_WARNING in started.error_text
        assert "another process" in started.error_text
        assert stranger.communicate(timeout=60)[0] == "0 0\n"
    finally:
        stranger.kill()
        stranger.wait()


def test_an_address_that_is_none(light_stage: Stage) -> None:
    for address in ("@", "@name", "@name:1", "@name:x:secret", "@a:1:b:c"):
        started = light_stage.start("-u", light_stage.script("import sys; sys.exit(7)"), env={"FT_NURSERY": address})
        assert started.wait() == 7
        assert COLD_WARNING in started.error_text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_whatever_it_knows(light_stage: Stage) -> None:
    light_stage.run("pass")
    name, _, _ = client.parse_address(light_stage.nursery.address)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            sock = socket.socket(socket.AF_UNIX)
            sock.connect("\0" + name[1:])
            line = client.Line(sock)
            letter, number, _ = line.receive_word()
            os.write(writer, letter + line.receive(abs(number))[0])
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1000) == b"Rthe nursery serves its own user only"
    os.close(reader)
    os.waitpid(pid, 0)
