"""A real run with a killed node, looked at from a terminal: live, through its store and its log, and afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.torchrun_cluster import QUICK, Cluster, free_port
from tests.support.waiting import WAIT_S, wait_until

FTR = str(Path(sys.executable).parent / "ftr")


def ftr(*arguments: object) -> str:
    done = subprocess.run(
        [FTR, *(str(each) for each in arguments)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_with_a_killed_node_is_seen_live_and_afterwards(cluster: Cluster) -> None:
    done, state_dir = cluster.path("done"), cluster.path("state")
    port = free_port()
    web = f"http://127.0.0.1:{port}"
    job = cluster.job("2:3", conf={**QUICK, "state_dir": state_dir, "state_port": port}, worker=["--until", done])
    _, n1 = job.start_pair()
    spare = job.start("spare", is_host=False, infra_rank=2)
    spare.wait_for("spare in cycle=1")
    watcher = subprocess.Popen([FTR, "status", state_dir, "--watch"], stdout=subprocess.PIPE, text=True)
    web_follower = subprocess.Popen([FTR, "events", web, "--follow"], stdout=subprocess.PIPE, text=True)
    follower = subprocess.Popen([FTR, "events", job.endpoint, "--follow"], stdout=subprocess.PIPE, text=True)
    try:
        n1.kill()
        spare.wait_report("step", cycle=2, rank=1)

        def look(source: object) -> dict[str, object] | None:
            told = json.loads(ftr("status", source, "--json"))
            return told if told["run"]["status"] == "RUNNING" and told["run"]["cycle_id"] == 2 else None

        through_store = wait_until("trains again, by the store", lambda: look(job.endpoint))
        through_log = wait_until("trains again, by the log", lambda: look(state_dir))
        through_web = wait_until("trains again, by HTTP", lambda: look(web))
        for picture in (through_store, through_log, through_web):
            nodes = {node["infra_rank"]: node for node in picture["nodes"]}  # type: ignore[attr-defined]
            assert [nodes[rank]["status"] for rank in range(3)] == ["ALIVE", "DEAD", "ALIVE"]
            assert nodes[0]["role"] == nodes[2]["role"] == "active"
        assert "2 nodes train in cycle 2" in ftr("status", job.endpoint)
        assert "is fenced, lost" in ftr("events", job.endpoint)
        # Both begin at the beginning; while the run lives, either may already have more.
        by_web, by_log = (ftr("events", source, "--json").splitlines() for source in (web, state_dir))
        both = min(len(by_web), len(by_log))
        assert both > 20
        assert by_web[:both] == by_log[:both]
        done.touch()
        job.assert_succeeds(but=[n1])
        watched, _ = watcher.communicate(timeout=WAIT_S)
        assert watcher.returncode == 0
        assert "RUNNING cycle 2" in watched
        assert "\nFINISHED  " in watched
        # The store goes with the run: who followed it has heard the verdict, or that it is gone.
        heard, _ = web_follower.communicate(timeout=WAIT_S)
        assert web_follower.returncode == 0
        assert "the run ended: succeeded" in heard
        followed, _ = follower.communicate(timeout=WAIT_S)
        assert follower.returncode in (0, 2)
        assert "cycle 2 is sealed" in followed
    finally:
        for process in (watcher, web_follower, follower):
            process.kill()
            process.wait()
    assert "the run ended: succeeded" in ftr("events", state_dir)
    page = ftr("report", state_dir)
    assert f"# Run {job.run_id}: FINISHED" in page
    assert "| lost: nodes lost | 1 |" in page or "| lost: workers failed | 1 |" in page
    assert page.endswith("Nothing.\n")
