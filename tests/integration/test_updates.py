"""Updates that a worker of a real run reports: they are told, and they change nothing."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.integration.test_state_terminal import ftr
from tests.support.torchrun_cluster import HERE, QUICK, Cluster, Node, Report
from tests.support.waiting import wait_until


def test_updates_are_shown_while_the_run_goes_on_and_reported_after_it(cluster: Cluster) -> None:
    done, state_dir = cluster.path("done"), cluster.path("state")
    conf = {**QUICK, "state_dir": state_dir}
    worker = ["--until", done, "--ask", "update:1", "--ask", "restart:1", "--ask", "update:2"]
    job = cluster.job("2", conf=conf, worker=worker)
    n0, n1 = job.start_all(2)
    for cycle in (1, 2):
        asked = wait_until("rank 0 has reported", lambda c=cycle: _told(n0, c) or _told(n1, c))  # type: ignore[misc]
        assert asked["is_heard"] == "True"

    def run_with(updates: int) -> dict[str, Any] | None:
        run: dict[str, Any] = json.loads(ftr("status", job.endpoint, "--json"))["run"]
        return run if run["updates"]["updates"] == updates else None

    run = wait_until("all updates are known", lambda: run_with(4))
    assert run["updates"] == {"updates": 4, "failed": 0, "retried": 2, "spent_s": 14.0, "lost_s": 6.0}
    told = [(each["cycle_id"], each["version"], each["failed"]) for each in run["recent_updates"]]
    assert sorted(told) == [(1, 1, []), (1, 2, ["gen-1"]), (2, 1, []), (2, 2, ["gen-1"])]
    assert run["recent_updates"][0]["steps"] == [["pause", 0.25], ["transfer", 1.5]]
    shown = ftr("status", job.endpoint)
    assert "updates: 4 in 14.0 s, of that 6.0 s in attempts that failed, 0 failed, 2 retried" in shown
    events = ftr("events", job.endpoint)
    assert "version 2 completed after 5.0 s in 2 attempts, 3.0 s lost, 1 of 2 parties has it; failed: gen-1" in events
    n0.wait_for("updates cycle=2 node=.* updates=2 failed=0 retried=1 lost_s=3.000: version 2 completed")
    done.touch()
    job.assert_succeeds()
    page = ftr("report", state_dir)
    assert "| updates | 4 in 14.0 s, of that 6.0 s in attempts that failed, 0 failed, 2 retried |" in page
    assert "| all | 4 | 0 | 2 | 14.0 s | 3.5 s | 6.0 s |" in page.split("## Updates")[1]
    assert "| cycles | 2 |" in page, "no update has opened a cycle"


def _told(node: Node, cycle: int) -> Report | None:
    return next(iter(node.reports("ask", cycle=cycle, what="update")), None)


def test_an_unrecoverable_update_restarts_the_group_and_training_goes_on(cluster: Cluster) -> None:
    state_dir = cluster.path("state")
    script = HERE / "workers" / "update_parties.py"
    job = cluster.job("2", conf={**QUICK, "state_dir": state_dir}, script=script, worker=[6, cluster.path("saved")])
    n0, n1 = job.start_all(2)
    job.assert_succeeds()
    driver = next(node for node in (n0, n1) if node.reports("step", rank=0))
    done = [(int(told["cycle"]), int(told["step"])) for told in driver.reports("step")]
    assert done == [(1, 1), (2, 2), (2, 3), (3, 4), (3, 5), (3, 6)], "no step is lost, and none is done twice"
    assert {told["sum"] for told in driver.reports("step")} == {"3"}
    reason = "the update to version {} failed: step 'transfer' on party 'gen-1': ConnectionError: the link is down"
    for cycle, version in ((2, 2), (3, 4)):
        assert n0.lines(f"opened cycle={cycle} because .*asked for a restart: {reason.format(version)}"), n0.tail()
    assert "Traceback" not in driver.log, "the worker is ended before it raises"
    # The fleet has reported its updates by itself.
    page = ftr("report", state_dir)
    assert "| cycles | 3 |" in page
    assert re.search(r"\| updates \| 8 in .*, 2 failed, 0 retried \|", page), page
    for cycle, version in ((1, 2), (2, 4)):
        row = rf"\| {cycle} \| .* \| {version} \| failed \| 1 \| 0 of 2 \| .* \| gen-1; {reason.format(version)} \|"
        assert re.search(row, page), page
