"""From facts to findings, without torch, a socket or a clock."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ft_rendezvous.config.lint import Remark
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.doctor.facts import (
    Attempt,
    Clients,
    Controller,
    EndpointFacts,
    EndpointState,
    Hello,
    LifelinePort,
    NodeFacts,
    Route,
    RunningRun,
)
from ft_rendezvous.doctor.findings import Examination, Status, worst
from ft_rendezvous.doctor.judging import CHECKS, judge
from ft_rendezvous.store import net
from tests.doctor.build import SOFTWARE, examination, finding_of, in_step, lookup, node, of_check, with_torch


def nodes(count: int, **changes: Any) -> list[NodeFacts]:
    return [node(task, **changes) for task in range(count)]


# --- everything together ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 6, 1000])
def test_nodes_that_are_well_get_nothing_but_passes(count: int) -> None:
    findings = judge(examination(*nodes(count)))
    assert {finding.status for finding in findings} == {Status.PASS}
    assert [finding for finding in findings if finding.remedy] == []


def test_a_thousand_nodes_that_say_the_same_are_as_many_findings_as_six() -> None:
    assert len(judge(examination(*nodes(1000)))) == len(judge(examination(*nodes(6))))


def test_what_must_be_mended_comes_first() -> None:
    seen = examination(node(), node(1, infra_rank=0), node(2, own_name=lookup("n3", 2.0)))
    order = [finding.status for finding in judge(seen)]
    assert order == sorted(order, key=["fail", "warn", "pass"].index)
    assert order[0] == "fail"


def test_every_finding_that_does_not_pass_has_a_remedy() -> None:
    """Over all the spoiled examinations of this file, gathered by the checks' own names."""
    seen = examination(
        node(run_error="lease_timeout=1 must be more", is_host=True),
        node(1, is_host=True, route=None, software=replace(SOFTWARE, is_registered=False, torchrun="")),
        with_torch(2, error="ImportError: no libcudart"),
        in_step(node(3, infra_rank=1, reverse=(lookup("::ffff:10.0.0.4", 5.0),)), 9, SLURM_KILL_BAD_EXIT="1"),
        endpoint=EndpointFacts(state=EndpointState.STRANGER, detail="another program listens there"),
        expected=9,
        controller=Controller(kill_on_bad_exit=True, wait_s=30, script_flags=("-K",)),
        clients=Clients(lookups=(lookup("::ffff:10.0.0.4", 5.0),)),
        files_wanted=1 << 30,
    )
    findings = [finding for finding in judge(seen) if finding.status is not Status.PASS]
    assert len({finding.check for finding in findings}) > 8
    assert [finding.check for finding in findings if not finding.remedy] == []


def test_the_verdict_is_the_worst_finding() -> None:
    assert worst(judge(examination())) is Status.PASS
    assert worst(judge(examination(node(own_name=lookup("n1", 2.0))))) is Status.WARN
    assert worst(judge(examination(node(endpoint=replace(lookup("n1"), found=()))))) is Status.FAIL
    assert worst([]) is Status.PASS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_without_nodes_says_nothing(check: Any) -> None:
    """Should the first node's own facts be all there is, and half of them unknown, nothing may break."""
    bare = node(route=None, reverse=(), outgoing_ports=None, endpoint=lookup("n1", 10.0, is_over=False))
    check(examination(replace(bare, is_host=False, infra_rank=None), attempts={}, clients=None, rules=None))


# --- who reported -----------------------------------------------------------------------------------


def test_nodes_that_never_report_are_named_by_infra_rank_and_host() -> None:
    here = [in_step(node(task), 6) for task in (0, 1, 5)]
    status, fact, hosts = finding_of("reports", examination(*here, expected=6))
    assert (status, hosts) == ("fail", ("n3", "n4", "n5"))
    assert fact == "3 nodes of 6 never reported within 60 s: infra ranks [2-4] (n[3-5])"


def test_a_node_that_never_reports_is_named_by_infra_rank_where_its_host_is_unknown() -> None:
    status, fact, hosts = finding_of("reports", examination(node(), expected=2))
    assert (status, hosts) == ("fail", ())
    assert fact == "1 node of 2 never reported within 60 s: infra rank 1"


def test_a_node_with_another_version_is_named_and_not_missing() -> None:
    misfit = Hello(v=2, key="7.0", task=1, host="n2", version="0.9")
    status, fact, hosts = finding_of("reports", examination(node(), expected=2, other_versions=[misfit]))
    assert (status, hosts) == ("fail", ("n2",))
    assert "0.9" in fact


def test_a_node_that_is_lost_on_the_way_is_named() -> None:
    assert finding_of("reports", examination(*nodes(3), lost=[1])) == (
        "fail",
        "reported, and did not answer later",
        ("n2",),
    )


@pytest.mark.parametrize("ranks", [(0, 0, 1), (3, 1, 3)])
def test_two_nodes_with_one_infra_rank_are_named(ranks: tuple[int, ...]) -> None:
    seen = examination(*(node(task, infra_rank=rank) for task, rank in enumerate(ranks)))
    status, fact, hosts = finding_of("infra-ranks", seen)
    assert status == "fail"
    assert len(hosts) == 2
    assert f"belongs to {hosts[0]}, {hosts[1]}" in fact


def test_tasks_on_one_host_are_reported_apart_by_infra_rank() -> None:
    seen = examination(*(node(task, host="n1", infra_rank=task) for task in range(2)), lost=[1])
    assert finding_of("reports", seen)[2] == ("n1/1",)


def test_clocks_are_information_however_wrong_they_are() -> None:
    seen = examination(*nodes(3), offsets_s={1: (3600.0, 0.001), 2: (-20.0, 0.5)})
    status, fact, _ = finding_of("clock", seen)
    assert status == "pass"
    assert "differ by 1 h 00 min" in fact
    assert "does not need them" in fact


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "status"), [(0.0004, "pass"), (0.05, "pass"), (0.051, "warn"), (1.0, "warn"), (1.001, "fail")]
)
def test_slow_reverse_lookups_are_judged_by_how_long_a_store_would_pause(seconds: float, status: str) -> None:
    slow = (lookup("10.0.0.1", 0.0001), lookup("::ffff:10.0.0.1", seconds))
    assert finding_of("reverse-dns", examination(node(reverse=slow)))[0] == status
    assert finding_of("client-dns", examination(node(), clients=Clients(lookups=slow)))[0] == status


def test_nodes_with_slow_lookups_are_one_finding_that_names_the_slowest_address() -> None:
    slow = [
        node(task, reverse=(lookup(f"::ffff:10.0.0.{task + 1}", 5.0 + task, error="no name"),)) for task in (1, 2, 3)
    ]
    passed = finding_of("reverse-dns", examination(node()))
    findings = of_check("reverse-dns", examination(node(), *slow))
    assert [str(finding.status) for finding in findings] == ["fail", "pass"]
    assert findings[0].nodes == ("n2", "n3", "n4")
    assert "takes 8.0 s (::ffff:10.0.0.4 on n4)" in findings[0].fact
    assert "/etc/hosts" in findings[0].remedy
    assert "RES_OPTIONS" in findings[0].remedy
    assert passed[2] == ("n1",)


def test_a_lookup_without_an_answer_is_reported_as_longer() -> None:
    unanswered = (lookup("::ffff:10.0.0.1", 10.0, is_over=False),)
    assert "takes more than 10.0 s" in finding_of("reverse-dns", examination(node(reverse=unanswered)))[1]


def test_resolver_options_are_reported_for_without_them_it_may_be_slower() -> None:
    fact = finding_of("reverse-dns", examination(node(resolver_options="timeout:1 attempts:1")))[1]
    assert "RES_OPTIONS='timeout:1 attempts:1'" in fact


def test_many_lookups_that_are_quick_one_by_one_may_be_slow_together() -> None:
    crowd = nodes(1000)
    clients = Clients(lookups=tuple(lookup(f"::ffff:10.0.{task}.1", 0.01) for task in range(1000)), untried=3)
    status, fact, hosts = finding_of("client-dns", examination(*crowd, clients=clients))
    assert (status, hosts) == ("warn", ("n1",))
    assert "30.0 s of pauses until all 1,000 nodes are connected" in fact
    assert "no time for 3 more" in fact


def test_a_store_that_is_slow_to_answer_is_reported_even_if_lookups_are_fast() -> None:
    status, fact, hosts = finding_of("store-start", examination(node(), with_torch(1, store_s=5.04)))
    assert (status, hosts) == ("fail", ("n2",))
    assert "5.0 s to answer its first client" in fact


def test_an_endpoint_that_does_not_resolve_is_reported_once_for_all_nodes() -> None:
    unknown = replace(lookup("head"), found=(), error="Name or service not known")
    status, fact, hosts = finding_of(
        "forward-dns", examination(*nodes(3, endpoint=unknown, route=None), attempts={}, clients=None)
    )
    assert (status, hosts) == ("fail", ("n1", "n2", "n3"))
    assert fact == "the endpoint's name head does not resolve (Name or service not known)"


def test_a_host_that_does_not_know_its_own_name_is_warned_of() -> None:
    nameless = node(1, own_name=replace(lookup("n2"), found=()))
    findings = of_check("forward-dns", examination(node(), nameless))
    assert [(str(finding.status), finding.nodes) for finding in findings] == [("warn", ("n2",)), ("pass", ("n1",))]


# --- the endpoint -----------------------------------------------------------------------------------


def run(**changes: Any) -> EndpointFacts:
    return EndpointFacts(
        state=EndpointState.RUN, run=RunningRun(**{"run_id": "job", "cycle_id": 3, "is_sealed": True, **changes})
    )


@pytest.mark.parametrize(
    ("endpoint", "changes", "status", "fact"),
    [
        (EndpointFacts(state=EndpointState.HELD), {}, "pass", "port 29400 is free there"),
        (run(), {}, "warn", "run 'job' is at n1:29400, in cycle 3; the doctor looked at it once and left it alone"),
        (run(is_sealed=False), {}, "warn", "waiting for nodes in cycle 3"),
        (run(), {"run_id": "job"}, "pass", "run 'job' is at n1:29400"),
        (run(), {"run_id": "mine"}, "fail", "it is not 'mine'"),
        (run(), {"run_id": "job", "run_differs": ["segment (here 2, the run has 1)"]}, "fail", "segment (here 2"),
        (run(verdict="succeeded"), {"run_id": "job"}, "warn", "it has ended (succeeded)"),
        (
            EndpointFacts(state=EndpointState.OTHER_STORE, detail="a TCPStore"),
            {},
            "fail",
            "is taken: a TCPStore",
        ),
        (
            EndpointFacts(state=EndpointState.STRANGER, detail="it says HTTP"),
            {},
            "fail",
            "is taken: it says HTTP",
        ),
        (EndpointFacts(state=EndpointState.TAKEN), {}, "fail", "is taken, but nothing answers"),
        (EndpointFacts(state=EndpointState.FORBIDDEN, detail="Permission denied"), {}, "fail", "Permission denied"),
        (EndpointFacts(state=EndpointState.NOTHING), {}, "warn", "nothing listens at n1:29400 yet"),
        (EndpointFacts(state=EndpointState.NO_ANSWER, detail="no answer"), {}, "fail", "n1:29400: no answer"),
        (EndpointFacts(state=EndpointState.UNKNOWN_HOST, detail="not found"), {}, "fail", "n1:29400: not found"),
    ],
)
def test_whose_the_endpoint_is(endpoint: EndpointFacts, changes: dict[str, Any], status: str, fact: str) -> None:
    found = finding_of("endpoint", examination(node(), endpoint=endpoint, attempts={}, clients=None, **changes))
    assert found[0] == status
    assert fact in found[1]


def test_every_state_of_an_endpoint_is_judged() -> None:
    for state in EndpointState:
        seen = EndpointFacts(state=state, run=RunningRun(run_id="job", cycle_id=1, is_sealed=False))
        assert of_check("endpoint", examination(node(), endpoint=seen))


def test_nodes_that_do_not_reach_the_endpoint_are_reported_by_reason() -> None:
    attempts = {
        0: [Attempt(address="10.0.0.1", seconds=0.1)],
        1: [Attempt(address="10.0.0.1", seconds=3.0, error="no answer from 10.0.0.1 within 3 s")],
        2: [Attempt(address="10.0.0.1", seconds=0.1, error="10.0.0.1: Connection refused")],
        3: [Attempt(address="10.0.0.1", seconds=3.0, error="no answer from 10.0.0.1 within 3 s")],
    }
    findings = of_check("reach", examination(*nodes(4), attempts=attempts))
    assert [(str(finding.status), finding.nodes) for finding in findings] == [
        ("fail", ("n2", "n4")),
        ("fail", ("n3",)),
        ("pass", ("n1",)),
    ]


def test_a_name_with_one_address_that_works_is_warned_of() -> None:
    attempts = [
        Attempt(address="fd00::1", seconds=3.0, error="Network is unreachable"),
        Attempt(address="10.0.0.1", seconds=0.1),
    ]
    both = lookup("n1", 0.001, "fd00::1", "10.0.0.1")
    seen = examination(node(endpoint=both), node(1, endpoint=both), attempts={0: attempts[1:], 1: attempts})
    findings = of_check("families", seen)
    assert [(str(finding.status), finding.nodes) for finding in findings] == [("warn", ("n2",)), ("pass", ("n1",))]
    assert "fd00::1 does not work (Network is unreachable), 10.0.0.1 does" in findings[0].fact
    assert findings[1].fact == "the endpoint has IPv4 and IPv6"


@pytest.mark.parametrize(("found", "families"), [(("10.0.0.1",), "IPv4"), (("fe80::1%eth0", "::1"), "IPv6")])
def test_one_family_is_enough(found: tuple[str, ...], families: str) -> None:
    status, fact, _ = finding_of("families", examination(node(endpoint=lookup("n1", 0.001, *found))))
    assert (status, fact) == ("pass", f"the endpoint has {families}")


def test_families_that_were_not_tried_are_reported_so() -> None:
    assert finding_of("families", examination(node(), attempts={}))[1] == "the endpoint has IPv4 (not tried)"


# --- lifelines --------------------------------------------------------------------------------------


SILENT = Attempt(address="10.0.0.1", seconds=3.0, error="no answer from 10.0.0.1 within 3 s")
REACHED = Attempt(address="10.0.0.1", seconds=0.1)


def test_nodes_that_do_not_reach_the_port_of_the_lifelines_are_warned_of_by_name() -> None:
    """Not those that do not reach the endpoint either: another check fails for them."""
    attempts = {0: [REACHED], 1: [REACHED], 2: [REACHED], 3: [SILENT]}
    tried = {0: [REACHED], 1: [SILENT], 2: [SILENT, REACHED], 3: [SILENT]}
    seen = examination(*nodes(4), attempts=attempts, lifeline_attempts=tried, lease_s=7.0)
    warned, passed = of_check("lifeline", seen)
    assert (str(warned.status), warned.nodes) == ("warn", ("n2",))
    assert "port 40000 of the store host, for lifelines, cannot be reached: no answer from 10.0.0.1" in warned.fact
    assert "lease_timeout=7 s" in warned.fact
    assert "lifeline_port=N" in warned.remedy
    assert "lifeline=no" in warned.remedy
    assert (str(passed.status), passed.nodes) == ("pass", ("n1", "n3"))


def test_a_lifeline_port_that_cannot_be_opened_keeps_the_run_from_starting() -> None:
    held = EndpointFacts(state=EndpointState.HELD, lifelines=LifelinePort(port=29400, error="Address already in use"))
    found = finding_of("lifeline", examination(*nodes(3), endpoint=held, lifeline_attempts={}))
    assert found == ("fail", "lifeline_port=29400 cannot be opened on the store host: Address already in use", ("n1",))


def test_nothing_is_said_of_lifelines_that_are_switched_off() -> None:
    held = EndpointFacts(state=EndpointState.HELD)
    assert of_check("lifeline", examination(*nodes(3), endpoint=held, lifeline_attempts={})) == []


def test_the_lifelines_of_a_run_that_trains_are_tried_although_its_store_is_left_alone() -> None:
    training = replace(run(), lifelines=LifelinePort(port=40000))
    seen = examination(node(), endpoint=training, attempts={}, lifeline_attempts={0: [SILENT]})
    assert finding_of("lifeline", seen)[0] == "warn"
    assert finding_of("lifeline", examination(node(), endpoint=training, attempts={}))[0] == "pass"


# --- addresses, files, ports ------------------------------------------------------------------------


def test_nodes_on_several_machines_that_take_themselves_for_the_endpoint() -> None:
    """What `--endpoint localhost` or Debian's 127.0.1.1 does: every machine would host a run of its own."""
    status, fact, hosts = finding_of("address", examination(*nodes(3, is_host=True)))
    assert (status, hosts) == ("fail", ("n1", "n2", "n3"))
    assert "each would host a run" in fact


def test_several_nodes_on_the_one_machine_of_the_endpoint_are_no_problem() -> None:
    here = Route(address="127.0.0.1", is_here=True, is_loopback=True, interface="lo")
    seen = examination(*nodes(3, is_host=True, machine="one", route=here))
    assert finding_of("address", seen)[:2] == ("pass", "the endpoint is this machine through lo")


SERVICE = lookup("train", 0.001, "10.0.0.1", "10.0.0.2", "10.0.0.3")
"""A name with the addresses of three machines."""


def in_service(task: int, **changes: Any) -> NodeFacts:
    reason = f"JOB_COMPLETION_INDEX is {task}"
    here = Route(address=f"10.0.0.{task + 1}", is_here=True, is_loopback=False, interface="eth0")
    known = {"own_addresses": (here.address,), "hosting_reason": reason, "is_host": task == 0, "route": here}
    return node(task, **{"endpoint": SERVICE, **known, **changes})


def test_a_node_alone_says_whether_it_would_host_a_name_of_several_machines() -> None:
    several = "the endpoint has 3 addresses, of this machine and of others"
    host = finding_of("address", examination(in_service(0)))
    assert host[:2] == ("pass", f"{several}; this node would host: JOB_COMPLETION_INDEX is 0")
    client = finding_of("address", examination(in_service(1)))
    assert client[:2] == ("pass", f"{several}; this node would not host: JOB_COMPLETION_INDEX is 1")


def test_one_host_among_several_machines_is_well_though_the_others_refuse() -> None:
    refused = Attempt(address="10.0.0.2", seconds=0.001, error="10.0.0.2: Connection refused")
    attempts = {task: (refused, Attempt(address="10.0.0.1", seconds=0.001)) for task in range(3)}
    seen = examination(*(in_service(task) for task in range(3)), attempts=attempts)
    assert [finding_of(check, seen)[0] for check in ("address", "families", "reach", "endpoint")] == ["pass"] * 4


def test_no_store_at_a_name_of_several_machines_and_no_node_that_would_host() -> None:
    nothing = EndpointFacts(state=EndpointState.NOTHING)
    status, fact, _ = finding_of("endpoint", examination(in_service(1), endpoint=nothing, attempts={}, clients=None))
    assert status == "warn"
    assert fact.endswith("and no node here would host: JOB_COMPLETION_INDEX is 1")


def test_nodes_that_cannot_know_whether_to_host_are_a_failure() -> None:
    unclear = [in_service(task, is_host=False, is_hosting_unclear=True, hosting_reason="unclear") for task in range(3)]
    (finding,) = of_check("address", examination(*unclear))
    assert (str(finding.status), finding.fact, finding.nodes) == ("fail", "unclear", ("n1", "n2", "n3"))
    assert "is_host=true" in finding.remedy
    assert "JOB_COMPLETION_INDEX" in finding.remedy


def test_a_way_that_ends_on_loopback_is_found() -> None:
    loop = Route(address="127.0.0.1", is_here=True, is_loopback=True, interface="lo")
    findings = of_check("address", examination(node(), node(1, route=loop), node(2)))
    assert (str(findings[0].status), findings[0].nodes) == ("fail", ("n2",))


def test_nodes_without_a_route_are_found() -> None:
    findings = of_check("address", examination(node(), node(1, route=None)))
    assert [(str(finding.status), finding.nodes) for finding in findings] == [("fail", ("n2",)), ("pass", ("n1",))]


def test_ways_are_grouped_by_interface() -> None:
    by_infiniband = Route(address="10.0.0.9", is_here=False, is_loopback=False, interface="ib0")
    findings = of_check("address", examination(node(), node(1), node(2, route=by_infiniband), node(3)))
    assert {finding.fact: finding.nodes for finding in findings} == {
        "the endpoint is this machine through eth0": ("n1",),
        "the endpoint is reached through eth0": ("n2", "n4"),
        "the endpoint is reached through ib0": ("n3",),
    }


@pytest.mark.parametrize(
    ("hard", "wanted", "status"), [(1024, 1024, "pass"), (1023, 1024, "fail"), (-1, 10**6, "pass")]
)
def test_the_store_host_needs_files_for_all_nodes(hard: int, wanted: int, status: str) -> None:
    """The soft limit is raised by the host itself; -1 is no limit."""
    seen = examination(node(files_hard=hard, files_soft=64), node(1, files_hard=8), files_wanted=wanted)
    assert finding_of("files", seen)[0] == status
    assert finding_of("files", seen)[2] == ("n1",)


def test_the_files_of_the_lifelines_are_told_and_are_never_the_first_to_be_short() -> None:
    held = finding_of("files", examination(node(files_hard=20_000), files_wanted=3_256, lifeline_files_wanted=1_256))
    fact = "a process on the store host may open 20,000 files; the store needs 3,256"
    assert held[:2] == ("pass", f"{fact}, and 1,256 in the process that holds the lifelines")
    assert finding_of("files", examination(node(files_hard=20_000), files_wanted=3_256))[1] == fact
    assert all(net.lifeline_files_wanted(count) <= net.files_wanted(count) for count in (1, 8, 10_000))
    unlimited = finding_of("files", examination(node(files_hard=-1), files_wanted=3_256))
    assert "may open any number of files" in unlimited[1]


@pytest.mark.parametrize(("port", "is_warned"), [(32767, False), (32768, True), (60999, True), (61000, False)])
def test_a_port_that_outgoing_connections_may_take(port: int, is_warned: bool) -> None:
    assert [str(finding.status) for finding in of_check("port", examination(node(), port=port))] == ["warn"] * is_warned


# --- software ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "fact"),
    [
        ({}, "pass", "torch 2.13.0+cpu, and its known faults (#118891, #135712, #194710, #194871) are handled"),
        ({"version": "2.8.0"}, "pass", "torch 2.8.0"),
        ({"version": "2.7.1"}, "fail", "too old"),
        ({"version": "1.13.1"}, "fail", "too old"),
        ({"version": "2.16.0.dev20270601"}, "warn", "newer than any"),
        ({"version": "2.16.0", "missing": ("the names of the exit barrier",)}, "fail", "lacks parts that"),
        ({"error": "import torch has not ended within 45 s", "is_late": True}, "warn", "not ended within 45 s"),
        ({"error": "ImportError: libcudart.so.12"}, "fail", "torch cannot be used: ImportError: libcudart.so.12"),
    ],
)
def test_torch(changes: dict[str, Any], status: str, fact: str) -> None:
    found = finding_of("torch", examination(with_torch(**changes)))
    assert found[0] == status
    assert fact in found[1]


def test_torch_without_numpy() -> None:
    assert finding_of("numpy", examination(node(), with_torch(1, has_numpy=False)))[::2] == ("warn", ("n2",))
    assert of_check("numpy", examination(with_torch(error="no torch", has_numpy=False))) == []


@pytest.mark.parametrize(
    ("changes", "status", "fact"),
    [
        ({}, "pass", "finds the backend"),
        ({"is_registered": False}, "fail", "not find the backend ft"),
        ({"torchrun": ""}, "warn", "not in PATH"),
        (
            {"torchrun": "/usr/bin/torchrun"},
            "warn",
            "/usr/bin/torchrun, from another environment than this ftr (/env/bin)",
        ),
    ],
)
def test_torchrun(changes: dict[str, Any], status: str, fact: str) -> None:
    found = finding_of("torchrun", examination(node(software=replace(SOFTWARE, **changes))))
    assert found[0] == status
    assert fact in found[1]


@pytest.mark.parametrize(
    ("changes", "status", "fact"),
    [
        ({"ft_rendezvous": "0.2.0"}, "fail", "ft-rendezvous is not the same everywhere: 0.1.0 on n[1-2]; 0.2.0 on n3"),
        ({"python": "3.12.1"}, "warn", "Python is not the same everywhere"),
        ({"torch": replace(SOFTWARE.torch, version="2.12.1")}, "fail", "torch is not the same everywhere"),
    ],
)
def test_versions_that_differ_between_nodes(changes: dict[str, Any], status: str, fact: str) -> None:
    odd = node(2, software=replace(SOFTWARE, **changes))
    found = of_check("versions", examination(node(), node(1), odd))
    assert (str(found[0].status), found[0].nodes) == (status, ("n3",))
    assert fact in found[0].fact
    assert str(found[1].status) == "pass"


# --- settings and spares ----------------------------------------------------------------------------


def test_settings_that_cannot_work_are_one_finding_for_all() -> None:
    error = "lease_timeout=1 must be more than 3 x beat_interval=1: one late beat must not kill a node"
    status, fact, hosts = finding_of("settings", examination(*nodes(3, run_error=error), rules=None))
    assert (status, fact, hosts) == ("fail", error, ("n1", "n2", "n3"))


def test_nodes_that_lack_the_same_are_one_finding() -> None:
    broken = [node(task, node_error=f"domain_from=nvlink says nothing of node n{task + 1}: x") for task in range(3)]
    assert finding_of("settings", examination(*broken))[1:] == (
        "domain_from=nvlink says nothing of this node: x",
        ("n1", "n2", "n3"),
    )


def test_nodes_that_read_different_files_are_named() -> None:
    odd = node(2, settings={"nnodes": "4:6", "lease_timeout": "9.0"})
    status, fact, hosts = finding_of("settings", examination(node(), node(1), odd))
    assert (status, hosts) == ("fail", ("n3",))
    assert "lease_timeout" in fact
    assert "nnodes" not in fact


def test_a_setting_without_effect_is_a_warning() -> None:
    remark = Remark("grow=next has no effect with policy=fixed", "set policy=elastic")
    (finding,) = of_check("settings", examination(remarks=[remark]))
    assert (finding.status, finding.fact, finding.remedy) == (Status.WARN, *remark)


def rules(least: int, most: int, **changes: Any) -> PlacementRules:
    return PlacementRules(min_nodes=least, max_nodes=most, **changes)


@pytest.mark.parametrize(
    ("given", "status", "fact"),
    [
        (rules(4, 6), "pass", "4 of 6 nodes in 2 domains would train; spares cover any 2 nodes"),
        (rules(6, 6), "warn", "spares cover no loss (--nnodes=6:6): the loss of a node would make the run wait"),
        (rules(7, 8), "fail", "would wait for more: 6 of 7 nodes have arrived"),
        (rules(4, 6, segment=2), "pass", "4 of 6 nodes in 2 domains would train"),
        (rules(6, 6, segment=2), "fail", "2 of 3 segments of 2 can be filled"),
        (rules(4, 6, policy=Policy.ELASTIC), "pass", "6 of 6 nodes in 2 domains would train"),
    ],
)
def test_what_the_spares_can_make_up_for(given: PlacementRules, status: str, fact: str) -> None:
    """Three nodes in each of two racks."""
    crowd = [node(task, domain=f"rack{task // 3}") for task in range(6)]
    found = finding_of("spares", examination(*crowd, rules=given))
    assert found[0] == status
    assert fact in found[1]


def test_how_many_train_is_asked_for_where_it_is_not_given() -> None:
    status, fact, _ = finding_of("spares", examination(*nodes(4), rules=rules(4, 4), are_sizes_given=False))
    assert status == "pass"
    assert fact.endswith("; --nnodes MIN:MAX says how many train")


def test_a_node_alone_is_not_blamed_for_the_absence_of_others() -> None:
    assert of_check("spares", examination(node(), rules=rules(8, 10))) == []


def test_a_task_of_an_array_is_not_blamed_for_the_absence_of_others() -> None:
    part = [in_step(node(task), 2) for task in range(2)]
    array = [replace(each, step=replace(each.step, is_array=True)) for each in part if each.step is not None]
    assert of_check("spares", examination(*part, rules=rules(8, 10)))[0].status == "fail"
    assert of_check("spares", examination(*array, rules=rules(8, 10))) == []


def test_a_node_without_a_domain_among_others_is_warned_of() -> None:
    seen = examination(node(domain="A"), node(1, domain="B"), node(2))
    assert finding_of("domains", seen)[::2] == ("warn", ("n3",))
    assert of_check("domains", examination(node(), node(1))) == []


# --- SLURM ------------------------------------------------------------------------------------------


def steps(count: int, controller: Controller | None = None, **flags: str) -> Examination:
    return examination(*(in_step(node(task), count, **flags) for task in range(count)), controller=controller)


@pytest.mark.parametrize(
    ("flags", "controller", "statuses", "fact"),
    [
        ({}, Controller(kill_on_bad_exit=False, wait_s=0), ["pass"], "nothing tells srun"),
        ({"SLURM_KILL_BAD_EXIT": "0", "SLURM_WAIT": "0"}, None, ["pass"], "nothing tells srun"),
        ({"SLURM_KILL_BAD_EXIT": "1"}, None, ["fail"], "srun ends all nodes when one of them fails"),
        ({"SLURM_KILL_BAD_EXIT": "1"}, Controller(kill_on_bad_exit=True), ["fail"], "SLURM_KILL_BAD_EXIT"),
        ({"SLURM_WAIT": "30"}, None, ["fail"], "SLURM_WAIT=30: srun ends all nodes 30 s after the first has ended"),
        ({}, Controller(kill_on_bad_exit=True), ["warn"], "KillOnBadExit=1"),
        ({}, Controller(wait_s=60), ["warn"], "WaitTime=60"),
        ({}, Controller(script_flags=("-K", "-W 5")), ["warn"], "the batch script passes -K, -W 5 to srun"),
    ],
)
def test_flags_that_defeat_spares(
    flags: dict[str, str], controller: Controller | None, statuses: list[str], fact: str
) -> None:
    found = of_check("slurm-flags", steps(3, controller, **flags))
    assert [str(finding.status) for finding in found] == statuses
    assert fact in found[0].fact


@pytest.mark.parametrize(("no_kill", "status"), [(True, "pass"), (None, "warn")])
def test_a_job_that_may_not_outlive_a_node(no_kill: bool | None, status: str) -> None:
    found = finding_of("no-kill", steps(3, Controller(no_kill=no_kill)))
    assert found[0] == status


def test_outside_of_slurm_nothing_is_said_of_it() -> None:
    assert [finding for finding in judge(examination(*nodes(2))) if finding.check.startswith(("slurm", "no-k"))] == []


def test_several_tasks_on_one_host_are_warned_of() -> None:
    crowded = [in_step(node(task, host=f"n{task // 8}"), 16) for task in range(16)]
    status, fact, hosts = finding_of("slurm-tasks", examination(*crowded))
    assert (status, hosts) == ("warn", ("n0", "n1"))
    assert "8 tasks on one node" in fact
    assert of_check("slurm-tasks", steps(3)) == []
