"""Which node hosts the store."""

from __future__ import annotations

import pytest

from ft_rendezvous.core.hosting import HostingRole, NodeIdentity, decide_hosting

HOST, CLIENT, UNCLEAR = HostingRole.HOST, HostingRole.CLIENT, HostingRole.UNCLEAR
A, B, C, A6 = "10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"
SERVICE = "train.ns.svc"


def pod(hostname: str = "", job_index: int | None = None, is_host: bool | None = None) -> NodeIdentity:
    return NodeIdentity(hostname=hostname, job_index=job_index, is_host=is_host, is_pod=True)


def machine(hostname: str = "", is_host: bool | None = None) -> NodeIdentity:
    return NodeIdentity(hostname=hostname, is_host=is_host)


@pytest.mark.parametrize(
    ("node", "endpoint", "addresses", "own", "role"),
    [
        # The user's word wins.
        pytest.param(machine("n1", is_host=True), "elsewhere", [B], [], HOST, id="told to host"),
        pytest.param(machine("n1", is_host=True), SERVICE, [], [], HOST, id="told to host an unknown name"),
        pytest.param(machine("n1", is_host=False), "n1", [A], [A], CLIENT, id="told not to host"),
        pytest.param(pod("train-3", 3, is_host=True), SERVICE, [A, B], [A], HOST, id="told to host with index 3"),
        pytest.param(pod("train-0", 0, is_host=False), SERVICE, [A, B], [A], CLIENT, id="told not to, with index 0"),
        # One machine.
        pytest.param(machine("n1"), "n1", [A], [A], HOST, id="its name"),
        pytest.param(machine("n1"), "head", [A], [A], HOST, id="an alias"),
        pytest.param(machine("n1"), "head", [A, A6], [A, A6], HOST, id="an alias with two families"),
        pytest.param(machine("n1"), "head", [B], [], CLIENT, id="another machine"),
        pytest.param(machine("n1"), "head", [B, C], [], CLIENT, id="other machines"),
        pytest.param(machine("n1"), "head", [], [], CLIENT, id="an unknown name"),
        pytest.param(machine("n1"), "localhost", ["::1", "127.0.0.1"], ["::1", "127.0.0.1"], HOST, id="localhost"),
        pytest.param(machine("ip-10-0-0-3"), "head", [C], [C], HOST, id="a number in a name is no index"),
        pytest.param(machine("n1.cluster"), "N1", [A, "54.1.2.3"], [A], HOST, id="its name, with an address of a NAT"),
        # A pod of its own, whatever its index is.
        pytest.param(pod("train-3", 3), "localhost", ["127.0.0.1"], ["127.0.0.1"], HOST, id="a pod for itself"),
        pytest.param(pod("train-3", 3), "train-3.train", [C], [C], HOST, id="a pod by its name"),
        pytest.param(pod("train-3", 3), C, [C], [C], HOST, id="a pod by its address"),
        pytest.param(pod("train-3", 3), A6, [A6], [A6], HOST, id="a pod by its IPv6 address"),
        # An Indexed Job behind a headless Service.
        pytest.param(pod("train-0", 0), SERVICE, [A, B, C], [A], HOST, id="index 0"),
        pytest.param(pod("train-0", 0), SERVICE, [A], [A], HOST, id="index 0 sees itself alone"),
        pytest.param(pod("train-0", 0), SERVICE, [B, C], [], CLIENT, id="index 0 is not in DNS yet"),
        pytest.param(pod("train-0", 0), SERVICE, [], [], CLIENT, id="index 0 and an unknown name"),
        pytest.param(pod("train-2", 2), SERVICE, [A, B, C], [C], CLIENT, id="index 2"),
        pytest.param(pod("train-2", 2), SERVICE, [C], [C], CLIENT, id="index 2 sees itself alone"),
        pytest.param(pod("train-2", 2), SERVICE, [A, A6], [A, A6], CLIENT, id="index 2 sees its two families"),
        pytest.param(pod("x-0", 2), SERVICE, [A, B], [A], CLIENT, id="the variable wins over the host name"),
        # A StatefulSet: the host name has the index.
        pytest.param(pod("train-0"), SERVICE, [A, B], [A], HOST, id="-0"),
        pytest.param(pod("train-0.train.ns"), SERVICE, [A], [A], HOST, id="-0 sees itself alone"),
        pytest.param(pod("train-10"), SERVICE, [A, B], [A], CLIENT, id="-10"),
        pytest.param(pod("train-10"), SERVICE, [A], [A], CLIENT, id="-10 sees itself alone"),
        pytest.param(machine("train-0"), SERVICE, [A, B], [A], HOST, id="-0 outside of Kubernetes"),
        pytest.param(machine("train-1"), SERVICE, [A, B], [A], CLIENT, id="-1 outside of Kubernetes"),
        # No index.
        pytest.param(pod("train-x2x4z"), SERVICE, [A, B], [A], UNCLEAR, id="no index"),
        pytest.param(pod("train"), SERVICE, [A, B], [A], UNCLEAR, id="pods with the name of their Service"),
        pytest.param(pod("master-x2x4z"), "master", [A], [A], HOST, id="a Service of one pod"),
        pytest.param(machine("n1"), "head", [A, B], [A], UNCLEAR, id="a name of two machines"),
        pytest.param(machine(""), "head", [A, B], [A], UNCLEAR, id="no host name"),
    ],
)
def test_which_node_hosts(
    node: NodeIdentity, endpoint: str, addresses: list[str], own: list[str], role: HostingRole
) -> None:
    choice = decide_hosting(node, endpoint, frozenset(addresses), frozenset(own))
    assert choice.role is role
    assert choice.reason


@pytest.mark.parametrize("seen", [[], [C], [A, C], [A, B, C], [A, B]])
def test_one_pod_of_a_service_hosts_whatever_each_sees(seen: list[str]) -> None:
    roles = {
        index: decide_hosting(pod(f"train-{index}", index), SERVICE, frozenset(seen), frozenset(seen) & {address}).role
        for index, address in enumerate((A, B, C))
    }
    assert roles[0] in (HOST, CLIENT)
    assert (roles[1], roles[2]) == (CLIENT, CLIENT)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (pod("train-2", 2), "JOB_COMPLETION_INDEX is 2, and the node with index 0 hosts"),
        (pod("train-2"), "the host name train-2 ends in -2, and the node with index 0 hosts"),
        (machine("n1"), "train.ns.svc has 5 addresses (10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more), and not all are of"),
    ],
)
def test_the_reason_names_its_source(node: NodeIdentity, reason: str) -> None:
    addresses = frozenset(f"10.0.0.{number}" for number in range(1, 6))
    assert decide_hosting(node, SERVICE, addresses, frozenset({A})).reason.startswith(reason)
