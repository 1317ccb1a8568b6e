"""Runs on a real Ray cluster: how they start, what they survive, how they end, and what is left of them."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import ray

from tests.ray.conftest import Start
from tests.ray.ray_cluster import RayCluster, RayCommand, connected
from tests.support.ray_machines import carriers
from tests.support.waiting import wait_until


def test_a_run_begins_with_min_nodes_and_grows_when_a_machine_comes(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    run = start("--nnodes", "1:2", conf="last_call_timeout=1")
    first = run.wait_trained(world=1)
    run.wait_said(
        r"waiting for Ray to place 1 of 2 nodes \(1\) since \d+ s: each needs 1 CPU, the cluster has 0 CPU free"
    )
    ray_cluster.add()
    run.wait_trained(after=first, world=2)
    (run.folder / "done").touch()
    assert run.wait_exit() == 0, run.explain()
    assert "run job succeeded in cycle 2" in run.output


def test_losses_are_survived_and_the_run_gets_its_machines_back(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(3)
    run = start("--nnodes", "2", "--spares", "1")
    cycle = run.wait_trained(world=2)

    # A raylet that stands still for a while is not lost.
    paused = ray_cluster.raylet_pid(run.machine_of(1))
    os.kill(paused, signal.SIGSTOP)
    time.sleep(5)
    os.kill(paused, signal.SIGCONT)
    time.sleep(2)
    assert {int(step["cycle"]) for step in run.steps()} == {cycle}, run.explain()

    # An actor is killed: its torchrun ends, the spare takes its rank, and the node starts anew as the spare.
    before = run.ranks(cycle)
    lost = before[1]
    with connected(ray_cluster.address):
        ray.kill(ray.get_actor(f"job/node-{lost}.1"))
    cycle = run.wait_trained(after=cycle, world=2)
    after = run.ranks(cycle)
    assert (after[0], after[1]) == (before[0], 3 - before[0] - before[1]), run.explain()
    run.wait_said(rf"node {lost} is running: .*\n(.*\n)*.*node {lost} is running: ")

    # The machine of rank 0 dies: the spare takes over. A machine comes, and the node is back.
    lost = after[0]
    ray_cluster.lose(run.machine_of(lost))
    cycle = run.wait_trained(after=cycle, world=2)
    assert lost not in run.ranks(cycle).values(), run.explain()
    run.wait_said(rf"node {lost} is lost")
    ray_cluster.add()
    run.wait_said(rf"(?s)node {lost} is lost.*node {lost} is running")
    (run.folder / "done").touch()
    assert run.wait_exit() == 0, run.explain()
    assert f"run job succeeded in cycle {cycle}" in run.output


def test_a_raylet_that_is_killed_alone_leaves_no_torchrun(ray_cluster: RayCluster, start: Start) -> None:
    """Ray leaves torchrun and its workers behind. The guard does not. The workers are warm ones."""
    ray_cluster.have(2)
    run = start("--nnodes", "1", "--spares", "1", "--warm")
    cycle = run.wait_trained(world=1)
    lost = run.ranks(cycle, world=1)[0]
    machine = run.machine_of(lost)
    assert ray_cluster.torchruns_under(ray_cluster.raylet_pid(machine))
    commands = [command for _, command in carriers(f"RAY_RAYLET_PID={ray_cluster.raylet_pid(machine)}")]
    assert any(b"warm/client.py" in command for command in commands)
    raylet = ray_cluster.kill_raylet(machine)
    wait_until("its torchrun has ended", lambda: not ray_cluster.torchruns_under(raylet), 60.0, run.explain)
    assert run.ranks(run.wait_trained(after=cycle, world=1), world=1)[0] != lost
    ray_cluster.lose(machine)
    (run.folder / "done").touch()
    assert run.wait_exit() == 0, run.explain()
    assert not any("starts cold" in run.node_log(node) for node in range(2)), run.explain()


def test_two_runs_that_each_need_more_than_half_do_not_block_each_other(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(3)
    first = start("--nnodes", "2", name="first")
    second = start("--nnodes", "2", name="second")
    begun = wait_until(
        "one of them trains", lambda: next((run for run in (first, second) if any(run.steps())), None), 120.0
    )
    waits = second if begun is first else first
    waits.wait_said(r"waiting for Ray to place 2 of 2 nodes")
    assert not any(waits.steps())
    (begun.folder / "done").touch()
    assert begun.wait_exit() == 0, begun.explain()
    waits.wait_trained(world=2)
    (waits.folder / "done").touch()
    assert waits.wait_exit() == 0, waits.explain()


def test_a_returning_machine_comes_back_to_its_run(ray_cluster: RayCluster, start: Start) -> None:
    """And not to a run that has waited for longer."""
    ray_cluster.have(2)
    run = start("--nnodes", "2")
    cycle = run.wait_trained(world=2)
    waits = start("--nnodes", "1", name="waits")
    waits.wait_said("waiting for Ray to place 1 of 1 nodes")
    ray_cluster.lose(run.machine_of(1))
    run.wait_said("node 1 is lost")
    ray_cluster.add()
    run.wait_trained(after=cycle, world=2)
    assert not any(waits.steps())
    (run.folder / "done").touch()
    assert run.wait_exit() == 0, run.explain()
    waits.wait_trained(world=1)
    (waits.folder / "done").touch()
    assert waits.wait_exit() == 0, waits.explain()


def test_a_script_that_fails_for_good_is_shown_with_its_own_error(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    run = start(
        "--nnodes", "1", train=("--fail-rank", "0", "--exit-code", "3", "--fail-below", "9"), conf="max_cycles=1"
    )
    assert run.wait_exit() == 1, run.explain()
    assert "run job failed in cycle" in run.output
    assert "exit code 3" in run.output or "exited 3" in run.output or "exitcode: 3" in run.output, run.explain()
    assert "the last lines of" in run.output
    assert "ft-test fail" in run.output


def test_ctrl_c_drains_and_a_second_one_stops(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(2)
    drained = start("--nnodes", "1", "--store", "first-node", train=("--on-usr1", "end"), name="drained")
    stopped = start("--nnodes", "1", train=("--on-usr1", "tell"), name="stopped")
    drained.wait_trained(world=1)
    stopped.wait_trained(world=1)
    for run in (drained, stopped):
        run.process.send_signal(signal.SIGINT)
    assert drained.wait_exit() == 130, drained.explain()
    assert "ft-test usr1" in drained.node_log(0)
    wait_until("the worker was told", lambda: "ft-test usr1" in stopped.node_log(0), 30.0, stopped.explain)
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.wait_exit() == 130, stopped.explain()


def test_an_operator_looks_at_a_run_and_stops_it(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    run = start("--nnodes", "1", "--spares", "1")
    run.wait_trained(world=1)
    status = run.also("status", "job", "--address", ray_cluster.address)
    assert status.returncode == 0, status.stderr
    assert re.search(r"job +127\.0\.0\.9:\d+ +0 +1 +running +127\.0\.0\.\d+", status.stdout), status.stdout
    assert re.search(r"job +127\.0\.0\.9:\d+ +1 +pending", status.stdout), status.stdout
    stop = run.also("stop", "job", "--address", ray_cluster.address)
    assert stop.returncode == 0, stop.stderr
    assert "run job has been stopped and removed" in stop.stderr
    assert run.wait_exit() != 0, run.explain()
    gone = run.also("status", "job", "--address", ray_cluster.address)
    assert (gone.returncode, "there is no run job on this cluster: it has none" in gone.stderr) == (2, True)


def test_nodes_run_in_a_copy_of_a_directory(ray_cluster: RayCluster, tmp_path: Path, start: Start) -> None:
    ray_cluster.have(1)
    place = tmp_path / "code"
    place.mkdir()
    (place / "hello.py").write_text("import os; print('hello from', os.getcwd())\n")
    words = ("--address", ray_cluster.address, "--log-dir", place / "logs", "--runtime-env", '{"working_dir": "."}')
    run = RayCommand(ray_cluster, place, (*words, "--", "hello.py"))
    assert run.wait_exit() == 0, run.explain()
    assert re.search("hello from .*/working_dir_files/", run.node_log(0)), run.node_log(0)
    assert callable(start), "which looks for what is left"
