"""A program that reads the log of the host or of a spare, and stops reading: the pipe is full, and the run goes on.

Torch's own lines block a node that restarts its workers into a full pipe. That is not ours to change.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.torchrun_cluster import QUICK, TORCHRUN, Cluster, read_verdict

FTR = (sys.executable, "-m", "ft_rendezvous.cli.main")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A named pipe of one page, and our end of it."""
    path = tmp_path / "log.pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
    yield path, end
    os.close(end)


def fill(end: int) -> None:
    with suppress(BlockingIOError):
        while True:
            os.write(end, b"x" * 512)
    with suppress(BlockingIOError):
        while True:
            os.write(end, b"x")


@pytest.mark.parametrize("whose", ["host", "spare"])
def test_a_log_that_is_not_read_does_not_hold_the_run(cluster: Cluster, pipe: tuple[Path, int], whose: str) -> None:
    path, end = pipe
    done, verdict = cluster.path("done"), cluster.path("verdict.json")
    job = cluster.job("2:3", conf={**QUICK, "verdict_file": verdict}, worker=["--until", done])

    def logged(name: str, command: Sequence[str]) -> Sequence[str]:
        return ("sh", "-c", f'exec "$@" 2>{path}', "sh", *command) if name == whose else command

    conf = ",".join(f"{key}={value}" for key, value in job.conf.items())
    serve = [*FTR, "serve", "--endpoint", job.endpoint, "--rdzv-id", job.run_id, "--nnodes=2:3", "--rdzv-conf", conf]
    host = cluster.spawn("host", logged("host", serve))
    actives = [job.start(f"n{rank}", is_host=False, infra_rank=rank) for rank in range(2)]
    for node in actives:
        node.wait_report("step", cycle=1)
    fill(end)
    spare = job.start("spare", is_host=False, infra_rank=2, launcher=logged("spare", TORCHRUN))
    actives[1].kill()
    for node in (actives[0], spare):
        node.wait_report("step", cycle=2, world=2, sum=3)
    done.touch()
    job.assert_succeeds(but=actives[1:])
    assert host.wait_exit() == 0
    assert read_verdict(verdict)["verdict"] == "succeeded"
    with pytest.raises(BlockingIOError):
        os.write(end, b"x")  # It was full all the time.
