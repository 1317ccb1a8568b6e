"""Real processes, as srun starts them: one tells, the others are silent, and all exit with one code."""

from __future__ import annotations

import json

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.launch.local import free_port
from tests.cli.conftest import Shell
from tests.contract.live import live_run
from tests.contract.strangers import listener, speak_http
from tests.contract.test_tcp_store import Wiretap
from tests.doctor.conftest import Srun, lines_of


def test_three_nodes_and_one_table(shell: Shell) -> None:
    domains = {task: {"FT_DOMAIN_ID": f"rack{task % 2}"} for task in range(3)}
    done = Srun(shell, 3).run("--endpoint", f"localhost:{free_port()}", "--nnodes", "2:3", env=domains)
    assert [done[task].returncode for task in range(3)] == [0, 0, 0], done[0].stdout
    assert [(done[task].stdout, done[task].stderr) for task in (1, 2)] == [("", ""), ("", "")]
    assert done[0].stderr == ""
    assert lines_of(done[0], "reports") == ["pass  reports      all 3 nodes reported"]
    assert "all 3 nodes: localhost" in lines_of(done[0], "reach")[0]
    assert lines_of(done[0], "lifeline")[0].startswith("pass  lifeline     all 3 nodes: port ")
    assert "2 of 3 nodes in 2 domains would train; spares cover any 1 node" in lines_of(done[0], "spares")[0]
    assert lines_of(done[0], "infra-ranks")[0].startswith("pass")
    assert "clocks differ by" in lines_of(done[0], "clock")[0]
    assert lines_of(done[0], "no-kill")[0].startswith("warn")
    assert shell.left_after_a_moment() == []


def test_nodes_with_one_infra_rank_fail_everywhere(shell: Shell) -> None:
    same = {"FT_INFRA_RANK": "5"}
    done = Srun(shell, 3).run("--endpoint", f"localhost:{free_port()}", "--json", env={1: same, 2: same})
    assert [done[task].returncode for task in range(3)] == [1, 1, 1]
    report = json.loads(done[0].stdout)
    (finding,) = (finding for finding in report["findings"] if finding["check"] == "infra-ranks")
    assert (finding["status"], finding["nodes"]) == ("fail", ["n2", "n3"])
    assert finding["fact"] == "infra rank 5 belongs to n2, n3"


def test_nodes_that_never_report_are_named_in_bounded_time(shell: Shell) -> None:
    srun = Srun(shell, 4, hosts="n[1-4]")
    done = srun.run("--endpoint", f"localhost:{free_port()}", "--timeout", "20", only=[0, 2])
    assert [done[task].returncode for task in (0, 2)] == [1, 1], done[0].stdout
    (line,) = lines_of(done[0], "reports")
    assert "2 nodes of 4 never reported within 20 s: infra ranks [1,3] (n[2,4])" in line
    assert done[2].stdout == ""


def test_a_node_that_cannot_report_says_so_itself(shell: Shell) -> None:
    (done,) = Srun(shell, 2).run("--endpoint", f"localhost:{free_port()}", "--timeout", "4", only=[1]).values()
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ftr: infra rank 1 (n2) could not report: the first node could not be reached")


def test_a_live_run_is_reported_by_its_id_and_is_met_by_one_connection(shell: Shell) -> None:
    with live_run(run_id="training") as run:
        first, second = run.node(0), run.node(1)
        run.seal(first, second)
        tap = Wiretap(run.port)
        done = Srun(shell, 3).run("--endpoint", f"127.0.0.1:{tap.port}")
        tap.close()
        assert [done[task].returncode for task in range(3)] == [0, 0, 0], done[0].stdout
        (line,) = lines_of(done[0], "endpoint")
        assert line.startswith("warn")
        assert (
            f"run 'training' is at 127.0.0.1:{tap.port}, in cycle 1; the doctor looked at it once and left it alone"
            in line
        )
        assert len(tap.heard) == 1
        assert "all 3 nodes" in lines_of(done[0], "lifeline")[0], "lifelines are not at the store: nothing is disturbed"
        assert run.finish(first, second).kind is VerdictKind.SUCCEEDED


def test_a_run_that_waits_for_nodes_is_reached_by_all(shell: Shell) -> None:
    with live_run(run_id="waiting") as run:
        arguments = ("--endpoint", f"127.0.0.1:{run.port}", "--rdzv-id", "waiting", "--nnodes", "2:4")
        done = Srun(shell, 2).run(*arguments, "--rdzv-conf", "lease_timeout=30,beat_interval=0.5")
        assert lines_of(done[0], "endpoint")[0].startswith("pass"), done[0].stdout
        assert "left alone" not in lines_of(done[0], "endpoint")[0]
        assert "all 2 nodes" in lines_of(done[0], "reach")[0]
        differing = Srun(shell, 2).run(*arguments)
        assert [differing[task].returncode for task in range(2)] == [1, 1]
        assert "lease_timeout (here 5.0, the run has 30.0)" in lines_of(differing[0], "endpoint")[0]


def test_a_foreign_listener_fails_on_all_nodes(shell: Shell) -> None:
    with listener(speak_http) as port:
        done = Srun(shell, 2).run("--endpoint", f"127.0.0.1:{port}")
    assert [done[task].returncode for task in range(2)] == [1, 1]
    assert f"127.0.0.1:{port} is taken" in lines_of(done[0], "endpoint")[0]
    assert (done[1].stdout, done[1].stderr) == ("", "")


def test_options_that_cannot_be_read_are_reported_by_one_of_them(shell: Shell) -> None:
    done = Srun(shell, 3).run("--endpoint", "n1:port")
    assert [done[task].returncode for task in range(3)] == [2, 2, 2]
    assert [len(done[task].stderr.splitlines()) for task in range(3)] == [1, 0, 0]
