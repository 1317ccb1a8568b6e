"""The example in the docs is a script that works, with an agent and without one."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ft_rendezvous import worker
from ft_rendezvous.agent.worker_messages import CheckpointMessage
from tests.support.torchrun_cluster import MARKER, TORCHRUN, find_processes, send
from tests.support.waiting import wait_until
from tests.worker.inbox_rig import CYCLE_ID, InboxRig

PAGE = Path(__file__).parent.parent.parent / "docs" / "worker-api.md"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    example = PAGE.read_text().partition("<!-- example -->\n```python\n")[2].partition("```\n<!-- /example -->")[0]
    assert example
    path = tmp_path / "train.py"
    path.write_text(example)
    return path


@pytest.fixture
def marker() -> Iterator[str]:
    marker = f"example-{secrets.token_hex(8)}"
    yield marker

    def nothing_lives() -> bool:
        living = find_processes(marker)
        for process in living:
            send(process.pid, signal.SIGKILL)
        return not living

    wait_until("nothing lives", nothing_lives)


def start(script: Path, marker: str, environ: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (*TORCHRUN, "--standalone", "--nproc-per-node=2", str(script), *options),
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ, MARKER: marker},
        cwd=script.parent,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def worker_pid(marker: str, local_rank: int) -> int:
    entry = f"LOCAL_RANK={local_rank}"
    (pid,) = (
        process.pid
        for process in find_processes(marker)
        if process.is_worker and entry in Path(f"/proc/{process.pid}/environ").read_text().split("\0")
    )
    return pid


def test_it_saves_early_when_urged_tells_of_it_and_resumes(script: Path, marker: str, inbox: InboxRig) -> None:
    forever = ("--steps=1000000000", "--save-every=1000000000")
    with start(script, marker, inbox.environ, *forever) as urged:
        try:
            assert urged.stdout is not None
            assert urged.stdout.readline() == f"begins after step 0 in cycle {CYCLE_ID}\n"
            # Not the worker that saves.
            os.kill(worker_pid(marker, 1), signal.SIGUSR1)
            assert inbox.hear() == CheckpointMessage(cycle_id=CYCLE_ID, local_rank=0)
            assert script.with_name("checkpoint.pt").exists()
        finally:
            urged.terminate()
    assert inbox.close() == [], "one signal, one checkpoint"

    with start(script, marker, {}, "--steps=1") as resumed:
        printed, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert re.fullmatch(r"begins after step [1-9]\d*\n", printed)


def test_every_call_on_the_page_exists() -> None:
    called = set(re.findall(r"worker\.(\w+)\(", PAGE.read_text()))
    assert called == {
        "info",
        "request_restart",
        "request_drain",
        "at_checkpoint",
        "on_group_lost",
        "is_place_trusted",
        "report_update",
        "UpdateReport",
        "UpdateStep",
        "progress",
        "pause_progress",
        "watch_optimizer",
    }
    assert all(callable(getattr(worker, name)) for name in called)
