"""The page of a real run: torchrun processes, a node that is killed, and the spare that takes its rank."""

from __future__ import annotations

import os
from pathlib import Path

from tests.state.page.browser import Page
from tests.support.torchrun_cluster import QUICK, Cluster, free_port

PICTURE = os.environ.get("FT_PICTURE")
"""Where to keep a picture of the page after the loss; the one in the docs is made so."""


def test_a_real_run_whose_node_is_killed_is_followed_to_its_end(cluster: Cluster, page: Page) -> None:
    done, port = cluster.path("done"), free_port()
    conf = {**QUICK, "state_port": port}
    racks = ["rack-1", "rack-1", "rack-2", "rack-2"]
    job = cluster.job("3:4", run_id="llama-7b", conf=conf, worker=["--until", done])
    nodes = [
        job.start(f"n{rank}", is_host=rank == 0, infra_rank=rank, conf={"domain": racks[rank]}) for rank in range(3)
    ]
    for node in nodes:
        node.wait_report("step")
    spare = job.start("spare", is_host=False, infra_rank=3, conf={"domain": racks[3]})
    spare.wait_for("spare in cycle=1")
    page.open(f"http://127.0.0.1:{port}/", height=860)
    page.wait_text("run-name", job.run_id)
    page.wait_text("status-word", "RUNNING")
    page.wait_kinds(active=3, hot_spare=1)
    page.run("window.isTheSame = true")
    assert page.pick("infra 1")["group rank"] == "1"
    assert page.details()["pid"] == str(nodes[1].pid)

    nodes[1].kill()
    page.wait("it is dead", lambda: "DEAD was a" in page.text("node-body"))  # Active or awaited.
    spare.wait_report("step", cycle=2, rank=1)
    page.wait("the spare trains", lambda: page.text("status-word") == "RUNNING" and page.text("spares") == "0")
    page.wait_kinds(active=3)
    page.wait_text("gone-title", "Gone (1)")
    told = page.pick("rank 1")
    assert (told["infra rank"], told["pid"], told["domain"]) == ("3", str(spare.pid), "rack-2")
    assert page.all(".cycle .status") == ["RUNNING", "ERRORED"]
    # Whether the lease or a worker of another node was faster, the cycle says whom it was about.
    assert "infra rank" in page.all(".cycle .why")[0]
    assert page.text("lost") != "0 ms"
    assert any("infra rank 1 " in each and "was lost" in each for each in page.events())
    if PICTURE:
        page.search(" ")
        page.run("document.activeElement.blur()")
        page.save(Path(PICTURE))

    page.may_lose_server = True  # It goes with the run.
    done.touch()
    page.wait_text("status-word", "SUCCEEDED")
    page.wait_text("line", "the run is over")
    job.assert_succeeds(but=[nodes[1]])
    assert page.run("return window.isTheSame"), "the page was loaded again"
