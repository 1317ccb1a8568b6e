"""What is recorded of real runs: a node that is killed, a host that vanishes, a disk that refuses."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ft_rendezvous.state.model.events import decode_line, encode_state, take_event
from ft_rendezvous.state.model.records import CycleStatus, NodeRole, NodeStatus, RunStatus
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.model.view import has_vanished, view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.store_query import QueryClient
from tests.state.test_export_log import log_files
from tests.support.torchrun_cluster import QUICK, TORCHRUN, Cluster, find_processes
from tests.support.waiting import WAIT_S, wait_until


def read(state_dir: Path) -> RunState:
    """Strictly: a log that a run has written has no gap and no torn line."""
    (folder,) = state_dir.iterdir()
    state = RunState()
    for path in log_files(folder):
        for line in path.read_bytes().splitlines():
            state = take_event(state, decode_line(line))
    return state


def test_a_run_with_a_killed_node_is_recorded_from_beginning_to_end(cluster: Cluster) -> None:
    done, state_dir = cluster.path("done"), cluster.path("state")
    conf = {**QUICK, "state_dir": state_dir}
    job = cluster.job("2:3", conf=conf, worker=["--until", done])
    _, n1 = job.start_pair()
    spare = job.start("spare", is_host=False, infra_rank=2)
    spare.wait_for("spare in cycle=1")
    n1.kill()
    spare.wait_report("step", cycle=2, rank=1)
    client = QueryClient(job.endpoint)
    live = wait_until("running again", lambda: _running_in(client.look(0).state, 2))
    nodes = {node.infra_rank: node for node in view_nodes(live)}
    assert [nodes[rank].status for rank in range(3)] == [NodeStatus.ALIVE, NodeStatus.DEAD, NodeStatus.ALIVE]
    assert nodes[0].role is nodes[2].role is NodeRole.ACTIVE
    assert (nodes[1].group_rank, nodes[2].group_rank) == (1, 1)
    done.touch()
    job.assert_succeeds(but=[n1])
    state = read(state_dir)
    run = view_run(state, state.time_ns)
    assert run is not None
    assert (run.name, run.status, run.live) == (job.run_id, RunStatus.FINISHED, 0)
    assert run.lost["nodes_lost"].times == 1
    assert run.versions.keys() == {"ft_rendezvous", "torch", "python"}
    first, second = view_cycles(state, state.time_ns)
    assert (first.status, second.status) == (CycleStatus.ERRORED, CycleStatus.FINISHED)
    # Whether the lease or a worker of the other node was faster, the loss is the cause.
    assert "infra rank" in second.why_text
    assert second.lost_s > 0, "the spare has to start its workers"
    assert not has_vanished(state, state.time_ns + 10**15)
    # What the host knew in the middle of the run is what the log says of that moment.
    again = RunState()
    (folder,) = state_dir.iterdir()
    for line in log_files(folder)[0].read_bytes().splitlines()[: live.event_id]:
        again = take_event(again, decode_line(line))
    assert encode_state(again) == encode_state(live)


def _running_in(state: RunState, cycle_id: int) -> RunState | None:
    is_there = (
        state.status is RunStatus.RUNNING and state.cycles[-1].cycle_id == cycle_id and state.cycles[-1].placement
    )
    return state if is_there else None


def test_a_failure_is_recorded_with_its_error_and_its_log(cluster: Cluster) -> None:
    done, state_dir, logs = cluster.path("done"), cluster.path("state"), cluster.path("logs")
    job = cluster.job("2", conf={**QUICK, "state_dir": state_dir}, worker=["--until", done, "--fail-below", 2])
    n0, _ = job.start_all(2, launcher=(*TORCHRUN, "-r", "3", "--log-dir", str(logs), "--logs-specs", "ft"))
    n0.wait_for("sealed cycle=2")
    done.touch()
    job.wait_all()
    state = read(state_dir)
    failed = [failure for node in view_nodes(state) for failure in node.failures]
    assert failed
    for failure in failed:
        assert f"exit code {failure.exit_code}" in failure.error
        assert Path(failure.log_path).is_file()
        assert f"cycle-{failure.cycle_id}" in failure.log_path


def test_a_host_that_vanishes_leaves_a_run_that_is_over_and_no_process(cluster: Cluster) -> None:
    state_dir = cluster.path("state")
    job = cluster.job("2", conf={**QUICK, "state_dir": state_dir})
    n0, n1 = job.start_pair()
    keepers = [process.pid for process in find_processes(n0.marker) if "state.record.keeper" in process.command]
    assert len(keepers) == 1
    n0.kill(with_workers=False)
    n1.wait_exit()
    wait_until("the keeper has ended", lambda: not _keepers(n0.marker) or None)
    state = read(state_dir)
    assert state.status is RunStatus.RUNNING
    assert has_vanished(state, time.time_ns() + 60 * 10**9)


def _keepers(marker: str) -> list[int]:
    return [process.pid for process in find_processes(marker) if "state.record.keeper" in process.command]


def test_a_directory_that_cannot_be_written_costs_one_warning(cluster: Cluster) -> None:
    done, blocked = cluster.path("done"), cluster.path("blocked")
    blocked.write_text("a file, not a directory")
    job = cluster.job("2", conf={**QUICK, "state_dir": blocked / "state"}, worker=["--until", done])
    n0, _ = job.start_pair()
    n0.wait_for("the state cannot be written")
    done.touch()
    job.assert_succeeds()
    assert len(n0.lines("the state cannot be written")) == 1


def test_a_keeper_that_is_killed_harms_nobody(cluster: Cluster) -> None:
    done, state_dir = cluster.path("done"), cluster.path("state")
    job = cluster.job("2", conf={**QUICK, "state_dir": state_dir}, worker=["--until", done])
    n0, n1 = job.start_pair()
    (keeper,) = _keepers(n0.marker)
    os.kill(keeper, signal.SIGKILL)
    n0.wait_for("the keeper of the state ended")
    seen = int(n1.reports("step")[-1]["step"])
    n1.wait_report("step", step=seen + 3, timeout_s=WAIT_S)
    wait_until("another keeper", lambda: _keepers(n0.marker) or None)
    done.touch()
    job.assert_succeeds()
    assert read(state_dir).status is RunStatus.FINISHED
