"""`ftr doctor` on one machine, as a new user runs it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time

import pytest

from ft_rendezvous.launch.local import free_port
from tests.cli.conftest import FTR, Shell
from tests.contract.strangers import listener, speak_http
from tests.doctor.conftest import ENDPOINT_TIMEOUT_S, lines_of, wait_until


def doctor(shell: Shell, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = shell.ftr("doctor", *arguments, timeout_s=ENDPOINT_TIMEOUT_S, **env)
    assert "Traceback" not in done.stderr
    return done


def test_a_machine_that_is_well_passes_in_plain_lines(shell: Shell) -> None:
    port = free_port()
    done = doctor(shell, "--endpoint", f"localhost:{port}", "--nnodes", "1")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert "─" not in done.stdout
    assert lines_of(done, "endpoint")[0].startswith("pass  endpoint")
    assert "and its known faults" in lines_of(done, "torch")[0]
    assert lines_of(done, "address")[0].endswith("through lo")
    last = done.stdout.splitlines()[-1]
    assert last.endswith(f"1 node examined for localhost:{port}")
    with socket.create_server(("", port)):
        pass  # It is as free as before.


def test_json_has_the_findings_and_the_facts(shell: Shell) -> None:
    port = free_port()
    done = doctor(shell, "--endpoint", f"localhost:{port}", "--rdzv-conf", "lease_timeout=1", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["format"], report["endpoint"], report["status"]) == (1, f"localhost:{port}", "fail")
    failed = [finding for finding in report["findings"] if finding["status"] == "fail"]
    assert [finding["check"] for finding in failed] == ["settings"]
    assert set(failed[0]) == {"check", "status", "fact", "remedy", "nodes"}
    assert "must be more than 3 x beat_interval" in failed[0]["fact"]
    assert (report["nodes_expected"], report["nodes_missing"], report["clients"]["untried"]) == (1, [], 0)
    assert report["endpoint_facts"]["state"] == "held"
    (node,) = report["nodes"]
    assert node["software"]["torch"]["missing"] == []
    assert node["route"]["is_here"]


def test_a_lifeline_port_that_is_taken_fails(shell: Shell) -> None:
    with listener(speak_http) as taken:
        conf = f"lifeline_port={taken}"
        done = doctor(shell, "--endpoint", f"localhost:{free_port()}", "--rdzv-conf", conf)
        assert done.returncode == 1
        assert f"lifeline_port={taken} cannot be opened on the store host" in lines_of(done, "lifeline")[0]
        done = doctor(shell, "--endpoint", f"localhost:{free_port()}", "--rdzv-conf", f"{conf},lifeline=no")
    assert done.returncode == 0, done.stdout
    assert lines_of(done, "lifeline") == []


def test_a_foreign_program_at_the_endpoint_is_reported(shell: Shell) -> None:
    with listener(speak_http) as port:
        done = doctor(shell, "--endpoint", f"127.0.0.1:{port}")
    assert done.returncode == 1
    (line,) = lines_of(done, "endpoint")
    assert line.startswith("fail")
    assert f"127.0.0.1:{port} is taken" in line
    assert "choose another port" in done.stdout


def test_nothing_at_an_endpoint_elsewhere_is_a_warning(shell: Shell) -> None:
    """192.0.2.1 would be elsewhere, but this machine may have no network; is_host says it too."""
    done = doctor(shell, "--endpoint", f"localhost:{free_port()}", "--rdzv-conf", "is_host=false")
    assert done.returncode == 0
    assert "this is not its machine" in lines_of(done, "endpoint")[0]


def test_a_name_that_does_not_resolve_fails_and_does_not_hang(shell: Shell) -> None:
    done = doctor(shell, "--endpoint", "no-such-host.invalid:29400")
    assert done.returncode == 1
    assert lines_of(done, "forward-dns")[0].startswith("fail")


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        (["--endpoint", "n1:port"], "is not host:port"),
        (["--endpoint", "n1:1", "--nnodes", "many"], "is not MIN:MAX"),
        (["--endpoint", "n1:1", "--rdzv-conf", "lease"], "is not key=value"),
    ],
)
def test_options_that_cannot_be_read_are_reported_in_one_line(shell: Shell, arguments: list[str], report: str) -> None:
    done = doctor(shell, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert report in done.stderr


def test_a_batch_script_is_not_taken_for_a_step(shell: Shell) -> None:
    """It has SLURM_PROCID=0 and SLURM_NTASKS=6, and the other five will never come."""
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_KILL_BAD_EXIT": "1"}
    done = doctor(shell, "--endpoint", f"localhost:{free_port()}", **batch)
    assert done.returncode == 1
    assert "never reported" not in done.stdout
    assert lines_of(done, "slurm-flags")[0].startswith("fail")


def test_torch_that_cannot_be_imported_is_reported_and_everything_else_too(shell: Shell) -> None:
    (shell.place / "broken" / "torch").mkdir(parents=True)
    (shell.place / "broken" / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")
    path = f"{shell.place / 'broken'}:{shell.env.get('PYTHONPATH', '')}"
    done = doctor(shell, "--endpoint", f"localhost:{free_port()}", PYTHONPATH=path)
    assert done.returncode == 1
    assert "torch cannot be used: OSError: libcudart.so.12: cannot open" in lines_of(done, "torch")[0]
    assert lines_of(done, "endpoint")[0].startswith("pass")


def test_a_signal_ends_it_at_once_at_every_moment(shell: Shell) -> None:
    (shell.place / "endless" / "torch").mkdir(parents=True)
    mark = shell.place / "imported"
    slow = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(20)"
    (shell.place / "endless" / "torch" / "__init__.py").write_text(slow)
    path = f"{shell.place / 'endless'}:{shell.env.get('PYTHONPATH', '')}"
    process = shell.start(FTR, "doctor", "--endpoint", f"localhost:{free_port()}", PYTHONPATH=path)
    wait_until("torch is being imported", mark.exists)
    process.send_signal(signal.SIGINT)
    since = time.monotonic()
    out, err = process.communicate(timeout=ENDPOINT_TIMEOUT_S)
    assert (process.returncode, out) == (130, "")
    assert err == "ftr: SIGINT was received: nothing was changed\n"
    assert time.monotonic() - since < 10


def test_a_terminal_gets_a_table(shell: Shell) -> None:
    command = f"ftr doctor --endpoint localhost:{free_port()}"
    done = shell.run("script", "-qec", command, "/dev/null", timeout_s=ENDPOINT_TIMEOUT_S, COLUMNS="120")
    assert done.returncode == 0, done.stdout
    assert "what was found, and what to do" in done.stdout
    assert "─" in done.stdout


def test_a_client_of_the_held_port_does_no_harm(shell: Shell) -> None:
    """A node that starts while the doctor looks is hung up on, and tries again as it does with any stranger."""
    port = free_port()
    answers: list[bytes] = []
    ended = threading.Event()

    def knock() -> None:
        while not ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                    answers.append(sock.recv(100))
            except OSError:
                ended.wait(0.01)

    thread = threading.Thread(target=knock)
    thread.start()
    done = doctor(shell, "--endpoint", f"127.0.0.1:{port}")
    ended.set()
    thread.join()
    assert done.returncode == 0, done.stdout
    assert {answer[:10] for answer in answers} <= {b"ft-doctor ", b""}
