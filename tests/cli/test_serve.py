"""`ftr serve`: a store of its own, whose exit code is the run's verdict."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from ft_rendezvous.cli.serve import parse_serve, verdict_exit_code
from ft_rendezvous.config.settings import parse_settings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict, VerdictKind
from ft_rendezvous.launch.local import free_port
from ft_rendezvous.node.session import open_session
from tests.cli.conftest import Shell


def wait_until_serving(process: subprocess.Popen[str]) -> list[str]:
    """The lines it logs until it serves. The test's own timeout bounds the wait."""
    assert process.stderr is not None
    lines: list[str] = []
    while not any("serving run" in line for line in lines):
        line = process.stderr.readline()
        assert line, f"it ended: {lines}"
        lines.append(line)
    return lines


def test_serve_outlives_a_run_that_succeeds(shell: Shell) -> None:
    endpoint = f"localhost:{free_port()}"
    script = shell.place / "train.py"
    script.write_text("import os; print('rank', os.environ['RANK'])\n")
    conf = "lease_timeout=4,beat_interval=0.5"
    store = shell.start_ftr("serve", "--endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "1:2", "--rdzv-conf", conf)
    wait_until_serving(store)
    node = shell.run(
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--max-restarts=100", "--rdzv-backend=ft"),
        *(f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", f"--rdzv-conf={conf}", script),
        timeout_s=120,
    )
    assert node.returncode == 0, node.stderr
    assert "rank 0" in node.stdout
    assert "hosting the store" not in node.stderr
    _, story = store.communicate(timeout=60)
    assert store.returncode == 0, story
    assert "sealed cycle=1 active=1" in story
    assert "closed verdict=succeeded" in story


def test_serve_tells_a_failed_run_by_its_exit_code(shell: Shell) -> None:
    port = free_port()
    store = shell.start_ftr(
        *("serve", "--endpoint", f"localhost:{port}", "--rdzv-id", "job", "--nnodes", "2"),
        *("--rdzv-conf", "join_timeout=1"),
    )
    wait_until_serving(store)
    settings = parse_settings(
        endpoint=f"localhost:{port}",
        run_id="job",
        min_nodes=2,
        max_nodes=2,
        conf={"join_timeout": "1", "is_host": "false"},
        env={},
    )
    session = open_session(settings, NodeInfo(addr="localhost", pid=1))
    verdict = session.link.next_place()
    session.link.leave(Outcome.LEFT, "the run is closed")
    session.bootstrap.release()
    assert isinstance(verdict, Verdict)
    assert verdict.kind is VerdictKind.FAILED
    _, story = store.communicate(timeout=60)
    assert store.returncode == 1, story
    assert "join_timeout of 1 s is over: 1 of 2 nodes have arrived" in story


def test_every_verdict_has_an_exit_code() -> None:
    codes = [
        verdict_exit_code(Verdict(kind)) for kind in (VerdictKind.SUCCEEDED, VerdictKind.FAILED, VerdictKind.CANCELLED)
    ]
    assert codes == [0, 1, 3]
    assert verdict_exit_code(None) == 1


def test_a_taken_port_is_reported_with_the_next_step(shell: Shell) -> None:
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = shell.ftr("serve", "--endpoint", f"localhost:{port}", "--rdzv-id", "job", "--nnodes", "2", timeout_s=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"ftr: port {port} is taken on this machine: choose another")
    assert "Traceback" not in done.stderr


def test_a_name_that_does_not_resolve_is_warned_of(shell: Shell) -> None:
    """It may resolve on the nodes, or later. So the store is there."""
    endpoint = f"no-such-host.invalid:{free_port()}"
    store = shell.start_ftr("serve", "--endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "2")
    lines = wait_until_serving(store)
    store.send_signal(signal.SIGTERM)
    store.communicate(timeout=30)
    (warning,) = [line for line in lines if "WARNING" in line]
    assert f"the endpoint {endpoint}: the host name does not resolve: nodes wait until they know the name" in warning
    assert "`getent ahosts no-such-host.invalid`" in warning


@pytest.mark.parametrize(
    ("nnodes", "conf", "message"),
    [
        ("2", "lease=3", "the closest known one is 'lease_timeout'"),
        ("2", "lease_timeout", "is not key=value"),
        ("2", "lease_timeout=soon", "lease_timeout=soon is malformed"),
        ("2", "lease_timeout=1", "must be more than 3 x beat_interval"),
        ("3:2", "", "--nnodes=3:2 is not MIN:MAX"),
        ("two", "", "--nnodes=two is not MIN:MAX"),
        ("3:4", "segment=2", "segment=2 does not divide MIN of --nnodes=3:4: make it --nnodes=4:4"),
        ("2", "domain_from=rack", "domain_from=rack is no source: use env:<variable>"),
    ],
)
def test_a_bad_setting_is_reported_in_one_line(shell: Shell, nnodes: str, conf: str, message: str) -> None:
    done = shell.ftr("serve", "--endpoint", "localhost:1", "--rdzv-id", "job", "--nnodes", nnodes, "--rdzv-conf", conf)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_a_store_of_its_own_is_asked_for_no_domain_and_no_unit() -> None:
    settings = parse_serve("localhost:1", "job", "4", "segment=2,unit_size=4,domain_from=nvlink,unit_from=env:NOWHERE")
    assert (settings.node.domain_id, settings.node.unit_id) == (None, None)
    assert settings.run.placement_rules.block == 4


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_store_with_one_clear_line(shell: Shell, signum: signal.Signals, code: int) -> None:
    store = shell.start_ftr("serve", "--endpoint", f"localhost:{free_port()}", "--rdzv-id", "job", "--nnodes", "2")
    wait_until_serving(store)
    store.send_signal(signum)
    _, story = store.communicate(timeout=30)
    assert store.returncode == code
    last = story.splitlines()[-1]
    assert (
        last
        == f"ftr: {signum.name} was received: the store of run 'job' ends here, and with it the run for all its nodes"
    )
