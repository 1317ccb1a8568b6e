"""What the user asks for on a Ray cluster, and what a cluster can hold of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray.request import (
    STRATEGIES,
    RayNodeFacts,
    RayRequest,
    Spreading,
    decide_spreading,
    describe_differences,
    describe_resources,
    parse_resources,
)


def request(**changes: Any) -> RayRequest:
    return RayRequest(**{"script": ("train.py", "--x"), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nnodes": "two"}, "--nnodes=two is not MIN:MAX"),
        ({"nnodes": "-1"}, "--nnodes=-1 is not MIN:MAX"),
        ({"nnodes": ""}, "is not MIN:MAX"),
        ({"nnodes": "4:2"}, "make it 2:4$"),
        ({"nnodes": "0"}, "make it 1:1$"),
        ({"nnodes": "0:4"}, "make it 1:4$"),
        ({"nnodes": "4:0"}, "make it 1:4$"),
        ({"spares": -1}, "--spares -1"),
        ({"name": "a b"}, "use letters, digits"),
        ({"name": "-a"}, "use letters, digits"),
        ({"name": "a/b"}, "use letters, digits"),
        ({"name": "a" * 64}, "at most 63"),
        ({"strategy": "SPRAED"}, "use one of STRICT_SPREAD, SPREAD, PACK, STRICT_PACK"),
        ({"store": "batch-host"}, "neither head, first-node nor HOST:PORT"),
        ({"store": "host"}, "neither head, first-node nor HOST:PORT"),
        ({"store": "host:0"}, "is not host:port"),
        ({"store": ":29400"}, "is not host:port"),
        ({"store": "host:29400", "port": 1}, "leave out --port"),
        ({"cpus_per_node": 0.0}, "give --cpus-per-node at least 1"),
        ({"cpus_per_node": -1.0}, "a node cannot have -1 CPU"),
        ({"gpus_per_node": -0.5}, "a node cannot have -0.5 GPU"),
        ({"cpus_per_node": float("nan")}, "a node cannot have nan CPU"),
        ({"gpus_per_node": float("inf")}, "a node cannot have inf GPU"),
        ({"resources": '{"tpu": -4}'}, "a node cannot have -4 tpu"),
        ({"resources": "tpu"}, "write name=amount,name=amount, or JSON"),
        ({"resources": '{"tpu": 4'}, "write name=amount,name=amount, or JSON"),
        ({"runtime_env": "{"}, "--runtime-env is not JSON"),
        ({"runtime_env": '["."]'}, "--runtime-env is not an object"),
        ({"pending_timeout_s": -1.0}, "--pending-timeout -1"),
        ({"pending_timeout_s": float("nan")}, "--pending-timeout nan"),
        ({"script": ()}, "there is no training script"),
        ({"script": ("torchrun", "train.py")}, "write -- train.py"),
        ({"script": ("--nnodes=2", "train.py")}, "is set by the launcher"),
        ({"nproc_per_node": "0"}, "is not a number of workers"),
        ({"log_dir": Path("a,b")}, "torchrun splits settings at commas"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request(**changes)


@pytest.mark.parametrize(
    ("nnodes", "spares", "sizes", "node_count", "is_elastic"),
    [
        ("1", 0, (1, 1), 1, False),
        ("3", 2, (3, 3), 5, False),
        ("2:4", 0, (2, 4), 4, True),
        ("2:4", 1, (2, 4), 5, True),
        ("2:2", 1, (2, 2), 3, False),
    ],
)
def test_how_many_nodes(nnodes: str, spares: int, sizes: tuple[int, int], node_count: int, is_elastic: bool) -> None:
    asked = request(nnodes=nnodes, spares=spares)
    assert asked.sizes == sizes
    assert asked.node_count == node_count
    assert asked.is_elastic is is_elastic


@pytest.mark.parametrize(
    ("changes", "bundle"),
    [
        ({}, {"CPU": 1.0}),
        ({"cpus_per_node": 4.0, "gpus_per_node": 2.0}, {"CPU": 4.0, "GPU": 2.0}),
        ({"cpus_per_node": 0.0, "gpus_per_node": 1.0}, {"GPU": 1.0}),
        ({"resources": "tpu=4"}, {"CPU": 1.0, "tpu": 4.0}),
        ({"cpus_per_node": 0.0, "resources": '{"tpu": 4}'}, {"tpu": 4.0}),
        ({"resources": "CPU=8"}, {"CPU": 8.0}),
    ],
)
def test_the_resources_of_a_node(changes: dict[str, Any], bundle: dict[str, float]) -> None:
    assert request(**changes).bundle == bundle


@pytest.mark.parametrize(("store", "is_own"), [("head", True), ("first-node", True), ("host:29400", False)])
def test_a_store_elsewhere_is_not_ours(store: str, is_own: bool) -> None:
    asked = request(store=store)
    assert asked.has_own_store is is_own
    assert asked.launch_options((), ()).store == ("batch-host" if is_own else store), "no node hosts it"


def test_a_port_is_for_our_own_store() -> None:
    assert request(port=4000).launch_options((), ()).port == 4000


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        ("", {}),
        ("tpu=4", {"tpu": 4.0}),
        (" tpu = 4 , rack=0.5", {"tpu": 4.0, "rack": 0.5}),
        (' {"tpu": 4, "rack": 0.5}', {"tpu": 4.0, "rack": 0.5}),
        ("{}", {}),
    ],
)
def test_resources_are_pairs_or_json(text: str, resources: dict[str, float]) -> None:
    assert parse_resources(text) == resources


@pytest.mark.parametrize(
    "text", ["tpu", "tpu=", "tpu=4,", "=4", '{"": 4}', "[4]", '{"tpu": []}', '{"tpu": null}', "{4}"]
)
def test_resources_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--resources"):
        parse_resources(text)


@pytest.mark.parametrize("text", ["machine", "machine=", "machine=some"])
def test_a_resource_without_an_amount_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="'machine' has no amount: write name=amount,name=amount, or JSON"):
        parse_resources(text)


def test_the_options_that_differ_are_named() -> None:
    mine, other = RayRequest(script=("train.py",)).describe(), RayRequest(script=("train.py",), spares=1).describe()
    assert describe_differences(mine, mine) == ""
    assert describe_differences(mine, other) == "spares"
    assert describe_differences({**mine, "directory": "/a"}, {**other, "directory": "/b"}) == (
        "spares, the working directory /a instead of /b"
    )
    assert describe_differences({"directory": ""}, {"directory": "/b"}) == (
        "the working directory that Ray copies instead of /b"
    )
    older = {key: value for key, value in other.items() if key != "strategy"}
    assert describe_differences(mine, older) == "spares, strategy"


def test_a_runtime_environment_is_an_object() -> None:
    assert request().environment == {}
    assert request(runtime_env='{"working_dir": "."}').environment == {"working_dir": "."}


def test_what_another_driver_must_ask_for_survives_the_way_through_json() -> None:
    asked = request(nnodes="2:4", spares=1, gpus_per_node=1.0, rdzv_conf={"lease_timeout": "5"})
    described = asked.describe()
    assert described == {
        "script": ["train.py", "--x"],
        "nnodes": [2, 4],
        "spares": 1,
        "nproc_per_node": "1",
        "resources": {"CPU": 1.0, "GPU": 1.0},
        "strategy": "",
        "runtime_env": "",
        "store": "head",
        "rdzv_conf": {"lease_timeout": "5"},
    }
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"pending_timeout_s": 5.0}, True),
        ({"address": "auto"}, True),
        ({"nnodes": "2:2"}, True),
        ({"nnodes": "2:3"}, False),
        ({"spares": 1}, False),
        ({"script": ("train.py",)}, False),
        ({"gpus_per_node": 1.0}, False),
        ({"rdzv_conf": {"lease_timeout": "5"}}, False),
    ],
)
def test_what_makes_it_another_run(changes: dict[str, Any], is_same: bool) -> None:
    asked = request(nnodes="2", name="a")
    assert (request(**{"nnodes": "2", "name": "a", **changes}).describe() == asked.describe()) is is_same


# --- what a cluster can hold --------------------------------------------------------------------------


def cluster(*cpus: float) -> list[RayNodeFacts]:
    return [RayNodeFacts(str(number), f"10.0.0.{number}", {"CPU": amount}) for number, amount in enumerate(cpus)]


@pytest.mark.parametrize(
    ("resources", "bundle", "count"),
    [
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, 2),
        ({"CPU": 8.0}, {"CPU": 3.0}, 2),
        ({"CPU": 8.0}, {"CPU": 9.0}, 0),
        ({"CPU": 8.0}, {"GPU": 1.0}, 0),
        ({"CPU": 7.0}, {"CPU": 0.07}, 100),
        ({"CPU": 8.0}, {}, 0),
    ],
)
def test_how_many_nodes_a_machine_holds(resources: dict[str, float], bundle: dict[str, float], count: int) -> None:
    assert RayNodeFacts("id", "address", resources).fits(bundle) == count


@pytest.mark.parametrize(
    ("cpus", "nnodes", "strategy", "spreading"),
    [
        ((4, 4), "2", "", "STRICT_SPREAD"),
        ((4, 4, 0), "2:8", "", "STRICT_SPREAD"),
        ((4, 4), "3", "", "SPREAD"),
        ((4,), "4", "", "SPREAD"),
        ((4, 0), "2", "SPREAD", "SPREAD"),
        ((4, 4), "2", "STRICT_SPREAD", "STRICT_SPREAD"),
        ((4, 4), "8", "PACK", "PACK"),
        ((4, 4), "4", "STRICT_PACK", "STRICT_PACK"),
    ],
)
def test_nodes_have_machines_of_their_own_if_there_are_so_many(
    cpus: tuple[float, ...], nnodes: str, strategy: str, spreading: str
) -> None:
    decided = decide_spreading(request(nnodes=nnodes, strategy=strategy), cluster(*cpus))
    assert decided.strategy == spreading
    assert bool(decided.warning) is (not strategy and spreading == "SPREAD"), "nothing is said of what was asked for"


def test_nodes_that_share_a_machine_are_a_warning() -> None:
    decided = decide_spreading(request(nnodes="3"), cluster(4, 4))
    assert decided.warning == "only 2 machines for 3 nodes: some share a machine, and its loss costs several"


@pytest.mark.parametrize(
    ("cpus", "nnodes", "strategy", "message"),
    [
        ((1, 1), "3", "", "3 nodes with 1 CPU each do not fit: the cluster holds 2 with SPREAD"),
        ((4, 4), "3", "STRICT_SPREAD", "the cluster holds 2 with STRICT_SPREAD"),
        ((4, 3), "8", "PACK", "the cluster holds 7 with PACK"),
        ((4, 3), "5", "STRICT_PACK", "the cluster holds 4 with STRICT_PACK"),
        ((), "1", "", "no machine of the cluster has 1 CPU: the largest have 0 CPU"),
        ((0, 0.5), "1", "", "no machine of the cluster has 1 CPU: the largest have 0.5 CPU"),
    ],
)
def test_what_can_never_fit_is_refused(cpus: tuple[float, ...], nnodes: str, strategy: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        decide_spreading(request(nnodes=nnodes, strategy=strategy), cluster(*cpus))
    assert "--pending-timeout" in str(caught.value), "and what to do"


def test_an_error_says_which_of_the_resources_are_there() -> None:
    with pytest.raises(ConfigError, match="has 1 CPU, 8 GPU: the largest have 4 CPU, 0 GPU"):
        decide_spreading(request(gpus_per_node=8.0), cluster(4, 2))


@pytest.mark.parametrize(
    ("cpus", "nnodes", "strategy", "spreading"),
    [
        ((), "2", "", "STRICT_SPREAD"),
        ((4,), "8", "", "STRICT_SPREAD"),
        ((4,), "2", "", "SPREAD"),
        ((4, 4), "2", "", "STRICT_SPREAD"),
        *(((), "2", strategy, strategy) for strategy in STRATEGIES),
    ],
)
def test_whoever_waits_for_machines_may_ask_for_more_than_there_is(
    cpus: tuple[float, ...], nnodes: str, strategy: str, spreading: str
) -> None:
    asked = request(nnodes=nnodes, strategy=strategy, pending_timeout_s=60.0)
    assert decide_spreading(asked, cluster(*cpus)) == Spreading(spreading)


@pytest.mark.parametrize(
    ("resources", "text"),
    [({"CPU": 1.0, "GPU": 0.5}, "1 CPU, 0.5 GPU"), ({"memory": 64.0}, "64 memory"), ({}, "nothing")],
)
def test_resources_in_words(resources: dict[str, float], text: str) -> None:
    assert describe_resources(resources) == text
