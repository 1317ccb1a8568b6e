"""Many workers at once, large requests, and two runs on one machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from ft_rendezvous.warm.client import header, parse_address
from tests.warm.stage import Stage, open_stage

STORM = 64


def test_a_storm_of_workers(light_stage: Stage) -> None:
    script = light_stage.script(
        "import os, sys; print(os.environ['RANK'], os.getpid()); sys.exit(int(sys.argv[1]) % 7)"
    )
    started = [light_stage.start("-u", script, rank, env={"RANK": str(rank)}) for rank in range(STORM)]
    codes = [each.wait() for each in started]
    assert codes == [rank % 7 for rank in range(STORM)]
    assert [each.text.split()[0] for each in started] == [str(rank) for rank in range(STORM)]
    assert {each.error_text for each in started} == {""}
    assert len({each.text.split()[1] for each in started}) == STORM


def test_two_runs_on_one_machine(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    script = "import os; print(os.environ['RUN'], end='')"
    with (
        open_stage(folders[0], {"RUN": "one"}, modules=()) as one,
        open_stage(folders[1], {"RUN": "two"}, modules=()) as two,
    ):
        assert one.nursery.address != two.nursery.address
        workers = [stage.run(script) for _ in range(3) for stage in (one, two)]
        assert [each.text for each in workers] == ["one", "two"] * 3
        assert {each.error_text for each in workers} == {""}
        one.nursery.end()
        one.assert_nothing_left()
        assert (two.run(script).text, two.run(script).error_text) == ("two", "")


def test_clients_that_talk_nonsense_cost_nothing(light_stage: Stage) -> None:
    light_stage.run("pass")
    name, _, secret = parse_address(light_stage.nursery.address)
    address = "\0" + name[1:]
    nonsense = header(5, secret) + b"xxxxx"
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, b"ftr-warm 1 0 5 ".ljust(80), nonsense):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(address)
            sock.sendall(words)
    started = light_stage.run("print('fine')")
    assert (started.text, started.error_text) == ("fine\n", "")
    light_stage.assert_nothing_left()


def test_the_client_imports_little() -> None:
    """Its time to start is the time of every restart."""
    import subprocess  # noqa: PLC0415

    from ft_rendezvous.warm.nursery import CLIENT  # noqa: PLC0415

    code = f"import sys; exec(open({str(CLIENT)!r}).read(), {{'__name__': 'client'}}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"socket", "signal", "subprocess", "json", "logging", "typing", "enum", "torch", "ft_rendezvous"}
    assert heavy & set(done.stdout.split()) == set()
