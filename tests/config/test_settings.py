"""Settings: what a user may write, and the error for everything else."""

from __future__ import annotations

import dataclasses
import socket
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.config.addresses import DEFAULT_PORT, format_endpoint, parse_endpoint
from ft_rendezvous.config.load import load_settings, locate_node, log_level
from ft_rendezvous.config.settings import OWNERS, Settings, differing_keys, settings_table
from ft_rendezvous.core.capacity import Policy, Ranks, Spread
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.core.progress import HangRules
from ft_rendezvous.errors import ConfigError


def parse(conf: dict[str, Any] | None = None, *, is_node: bool = True, **changes: Any) -> Settings:
    """The settings of a node, or of a host that is none."""
    given: dict[str, Any] = {
        "endpoint": "head:29400",
        "run_id": "job",
        "min_nodes": 2,
        "max_nodes": 4,
        "conf": conf or {},
        "env": {},
    }
    given |= changes
    settings = load_settings(**given)
    return locate_node(settings, given["env"]) if is_node else settings


# --- keys and values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "closest"),
    [
        ("lease_timout", "lease_timeout"),
        ("leasetimeout", "lease_timeout"),
        ("beat", "beat_interval"),
        ("infra-rank", "infra_rank"),
        ("Domain", "domain"),
        ("ishost", "is_host"),
        ("last_call", "last_call_timeout"),
        ("segments", "segment"),
        ("unitsize", "unit_size"),
        ("domain-from", "domain_from"),
        ("unit-from", "unit_from"),
    ],
)
def test_an_unknown_key_names_the_closest_known_one(key: str, closest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({key: "1"})
    assert str(caught.value) == f"unknown --rdzv-conf key {key!r}; the closest known one is {closest!r}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lease_timeout", "soon"),
        ("lease_timeout", ""),
        ("lease_timeout", "nan"),
        ("lease_timeout", "inf"),
        ("lease_timeout", "-1"),
        ("lease_timeout", "5s"),
        ("join_timeout", None),
        ("settle_s", [1]),
        ("infra_rank", "one"),
        ("infra_rank", "1.5"),
        ("infra_rank", 1.5),
        ("infra_rank", "-1"),
        ("infra_rank", ""),
        ("is_host", "maybe"),
        ("is_host", ""),
        ("is_host", 2),
        ("segment", "two"),
        ("segment", "-1"),
        ("segment", 1.5),
        ("unit_size", ""),
        ("unit_size", True),
    ],
)
def test_a_malformed_value_is_shown_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^--rdzv-conf {key}=.* is malformed: "):
        parse({key: value})


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"lease_timeout": "7.5"}, ("run", "lease_s", 7.5)),
        ({"lease_timeout": 7}, ("run", "lease_s", 7.0)),
        ({"beat_interval": "0.5"}, ("run", "beat_s", 0.5)),
        ({"join_timeout": "60"}, ("run", "join_s", 60.0)),
        ({"last_call_timeout": "0"}, ("run", "last_call_s", 0.0)),
        ({"settle_s": "1"}, ("run", "settle_s", 1.0)),
        ({"store_grace": "9"}, ("run", "store_grace_s", 9.0)),
        ({"infra_rank": "12"}, ("node", "infra_rank", 12)),
        ({"domain": "rack 7"}, ("node", "domain_id", "rack 7")),
        ({"domain": 7}, ("node", "domain_id", "7")),
        ({"unit": "12"}, ("node", "unit_id", "12")),
        ({"segment": "2", "domain": "a"}, ("run", "segment", 2)),
        ({"unit_size": 2, "unit": "a"}, ("run", "unit_size", 2)),
        ({"ranks": "topology"}, ("run", "ranks", Ranks.TOPOLOGY)),
        ({"spread": "Domains", "domain": "a"}, ("run", "spread", Spread.DOMAINS)),
        ({"policy": "ELASTIC"}, ("run", "policy", Policy.ELASTIC)),
        ({"grow": "checkpoint"}, ("run", "grow", Grow.CHECKPOINT)),
        ({"is_host": "true"}, ("node", "is_host", True)),
        ({"is_host": "0"}, ("node", "is_host", False)),
        ({"is_host": False}, ("node", "is_host", False)),
        ({}, ("node", "is_host", None)),
        ({}, ("node", "infra_rank", None)),
        ({}, ("node", "domain_id", None)),
        ({}, ("node", "unit_id", None)),
    ],
)
def test_values_arrive_with_their_type(conf: dict[str, Any], expected: tuple[str, str, Any]) -> None:
    owner, name, value = expected
    got = getattr(getattr(parse(conf), owner), name)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("ranks", "sticky or topology"),
        ("spread", "none or domains"),
        ("policy", "fixed or elastic"),
        ("grow", "now or next or checkpoint"),
    ],
)
@pytest.mark.parametrize("value", ["", "other", "1", True])
def test_a_choice_that_is_none_is_told_with_the_allowed_ones(key: str, allowed: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({key: value})
    assert str(caught.value) == f"--rdzv-conf {key}={value} is malformed: it must be {allowed}"


def test_what_c10d_and_torchrun_pass_is_accepted_and_changes_nothing() -> None:
    """In a command that worked with c10d, only the backend changes."""
    conf = {
        "timeout": "900",
        "close_timeout": "30",
        "heartbeat_timeout": "5",
        "keep_alive_interval": "5",
        "keep_alive_max_attempt": "3",
        "read_timeout": "60",
        "store_type": "tcp",
        "rank": "0",
    }
    assert parse(conf) == parse()


@pytest.mark.parametrize("key", ["join_timeout", "last_call_timeout", "is_host"])
def test_what_c10d_has_too_is_ours_as_well(key: str) -> None:
    assert parse({key: "1"}) != parse()


# --- relations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"run_id": ""}, "the run id is empty: pass --rdzv-id"),
        ({"min_nodes": 5}, "--nnodes=5:4 is not MIN:MAX"),
        ({"min_nodes": 0}, "--nnodes=0:4 is not MIN:MAX"),
        ({"conf": {"lease_timeout": "3"}}, "lease_timeout=3 must be more than 3 x beat_interval=1"),
        ({"conf": {"beat_interval": "2"}}, "lease_timeout=5 must be more than 3 x beat_interval=2"),
        ({"conf": {"beat_interval": "0"}}, "beat_interval"),
        ({"conf": {"lease_timeout": "0"}}, "lease_timeout=0 must be more than"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(changes: dict[str, Any], fact: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    assert fact in str(caught.value)


def test_as_many_nodes_as_wanted_and_no_more_is_fine() -> None:
    assert parse(min_nodes=4, max_nodes=4).run.placement_rules.world_size(4) == 4


WHERE = {"domain": "rack1", "unit": "u1"}
"""What a node may need to know of itself."""


@pytest.mark.parametrize("key", ["segment", "unit_size"])
@pytest.mark.parametrize(("min_nodes", "size", "works"), [(1, 2, 2), (3, 2, 4), (5, 4, 8), (4, 3, 6), (2, 16, 16)])
def test_a_min_that_blocks_do_not_divide_is_refused_with_one_that_works(
    key: str, min_nodes: int, size: int, works: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({key: str(size), **WHERE}, min_nodes=min_nodes, max_nodes=16)
    assert str(caught.value) == (
        f"{key}={size} does not divide MIN of --nnodes={min_nodes}:16: make it --nnodes={works}:16, for example"
    )
    assert parse({key: str(size), **WHERE}, min_nodes=works, max_nodes=16).run.placement_rules.block == size


@pytest.mark.parametrize("key", ["segment", "unit_size"])
def test_blocks_without_nodes_are_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({key: "0", **WHERE})
    assert str(caught.value) == f"{key}=0 would place no node: leave it out, or make it 1 or more"


@pytest.mark.parametrize(
    ("segment", "unit_size", "is_fine"),
    [(2, 1, True), (2, 2, True), (2, 4, True), (3, 6, True), (1, 3, True), (2, 3, False), (4, 2, False), (4, 6, False)],
)
def test_a_unit_holds_whole_segments(segment: int, unit_size: int, is_fine: bool) -> None:
    conf = {"segment": str(segment), "unit_size": str(unit_size), **WHERE}
    if is_fine:
        assert parse(conf, min_nodes=12, max_nodes=12).run.unit_size == unit_size
        return
    with pytest.raises(ConfigError) as caught:
        parse(conf, min_nodes=12, max_nodes=12)
    assert (
        str(caught.value)
        == f"unit_size={unit_size} is not a multiple of segment={segment}: a unit holds whole segments"
    )


def test_max_need_not_be_a_multiple_of_a_block() -> None:
    assert parse({"segment": "2", "policy": "elastic", **WHERE}, max_nodes=5).run.placement_rules.world_size(5) == 4


# --- endpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1:29500", "node1", 29500),
        ("node1", "node1", DEFAULT_PORT),
        ("  node1:1  ", "node1", 1),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("[fe80::1]:29500", "fe80::1", 29500),
        ("[fe80::1]", "fe80::1", DEFAULT_PORT),
        ("fe80::1", "fe80::1", DEFAULT_PORT),
        ("", "localhost", DEFAULT_PORT),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == (host, port)
    assert parse_endpoint(format_endpoint(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [":29400", "node1:port", "node1:0", "node1:65536", "node1:-1", "node1:1.5", "[]:1", "[fe80::1]:x", "node1:²"],
)
def test_a_malformed_endpoint_is_shown_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not host:port, for example --rdzv-endpoint=node1:29400"):
        parse_endpoint(text)


@given(text=st.text(max_size=20) | st.text(alphabet="[]:.019a²", max_size=12))
def test_any_text_is_an_endpoint_or_a_mistake_that_is_told(text: str) -> None:
    try:
        host, port = parse_endpoint(text)
    except ConfigError:
        return
    assert host
    assert 0 < port < 65536


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1", "[::1]", ""])
@pytest.mark.parametrize("variable", ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"])
def test_a_loopback_endpoint_on_several_machines_is_refused_with_what_to_pass(host: str, variable: str) -> None:
    endpoint = f"{host}:29400" if host else ""
    with pytest.raises(ConfigError) as caught:
        parse(endpoint=endpoint, env={variable: "8"})
    assert "loopback address, but SLURM runs this job on 8 machines" in str(caught.value)
    assert "--rdzv-endpoint=$(scontrol show hostnames" in str(caught.value)


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_NUM_NODES": "1"}, {"SLURM_NNODES": "1"}, {"SLURM_NNODES": "?"}])
def test_a_loopback_endpoint_on_one_machine_is_fine(env: dict[str, str]) -> None:
    assert parse(endpoint="localhost:29400", env=env).node.endpoint == "localhost:29400"


# --- the environment --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "conf", "infra_rank"),
    [
        ({"FT_INFRA_RANK": "3"}, {}, 3),
        ({"SLURM_PROCID": "4"}, {}, 4),
        ({"SLURM_NODEID": "6"}, {}, 6),
        ({"GROUP_RANK": "5"}, {}, 5),
        ({"FT_INFRA_RANK": "3", "SLURM_PROCID": "4", "SLURM_NODEID": "6", "GROUP_RANK": "5"}, {}, 3),
        ({"SLURM_PROCID": "4", "SLURM_NODEID": "6", "GROUP_RANK": "5"}, {}, 4),
        ({"SLURM_NODEID": "6", "GROUP_RANK": "5"}, {}, 6),
        ({"FT_INFRA_RANK": "", "SLURM_PROCID": "4"}, {}, 4),
        ({"FT_INFRA_RANK": "0", "SLURM_PROCID": "4"}, {}, 0),
        ({"SLURM_PROCID": "1", "FT_INFRA_RANK_BASE": "6"}, {}, 7),
        ({"FT_INFRA_RANK": "1", "FT_INFRA_RANK_BASE": "6"}, {}, 1),
        ({"FT_INFRA_RANK": "3"}, {"infra_rank": "9"}, 9),
        ({"FT_INFRA_RANK": "3"}, {"infra_rank": "0"}, 0),
        ({}, {}, None),
    ],
)
def test_an_infra_rank_comes_from_the_command_then_from_the_environment(
    env: dict[str, str], conf: dict[str, str], infra_rank: int | None
) -> None:
    assert parse(conf, env=env).node.infra_rank == infra_rank


@pytest.mark.parametrize("name", ["FT_INFRA_RANK", "SLURM_PROCID", "SLURM_NODEID", "GROUP_RANK"])
@pytest.mark.parametrize("value", ["x", "-1", "1.5", "²"])
def test_an_infra_rank_in_the_environment_that_is_none_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value} is not a rank"):
        parse(env={name: value})


@pytest.mark.parametrize(
    ("env", "job_index", "is_pod"),
    [
        ({}, None, False),
        ({"JOB_COMPLETION_INDEX": ""}, None, False),
        ({"JOB_COMPLETION_INDEX": "0"}, 0, False),
        ({"JOB_COMPLETION_INDEX": "12", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, 12, True),
    ],
)
def test_a_pod_knows_its_index(env: dict[str, str], job_index: int | None, is_pod: bool) -> None:
    node = parse(env=env).node
    assert (node.identity.job_index, node.identity.is_pod) == (job_index, is_pod)
    assert node.identity.hostname == socket.gethostname()


def test_an_index_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="JOB_COMPLETION_INDEX=first is not an index"):
        parse(env={"JOB_COMPLETION_INDEX": "first"})


@pytest.mark.parametrize(("value", "shares"), [("1", False), ("0", True), ("", True), (None, True)])
def test_torchs_switch_for_the_workers_store_is_honoured(value: str | None, shares: bool) -> None:
    env = {} if value is None else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": value}
    assert parse(env=env).node.shares_store is shares


@pytest.mark.parametrize(
    ("conf", "value", "is_set"),
    [
        ({}, None, False),
        ({}, "1", True),
        ({}, "0", False),
        ({"identical_workers": "true"}, None, True),
        ({"identical_workers": "false"}, "1", False),
    ],
)
def test_identical_workers_are_a_setting_of_the_run_or_torchs_own(
    conf: dict[str, str], value: str | None, is_set: bool
) -> None:
    env = {} if value is None else {"TORCH_ELASTIC_WORKER_IDENTICAL": value}
    run = parse(conf, env=env).run
    assert run.has_identical_workers is is_set
    assert (run.as_dict() == parse().run.as_dict()) is not is_set, "mixed values would hang: nodes must agree"


def test_the_log_level_comes_from_the_environment() -> None:
    assert log_level({}) == "INFO"
    assert log_level({"FT_LOGLEVEL": "debug"}) == "DEBUG"


# --- where a node is --------------------------------------------------------------------------------

SILENT = "command:exit 3"
"""A source that gives no name."""


@pytest.mark.parametrize(
    ("conf", "env", "domain"),
    [
        ({}, {}, None),
        ({"domain": "rack1"}, {}, "rack1"),
        ({}, {"FT_DOMAIN_ID": "rack2"}, "rack2"),
        ({}, {"FT_DOMAIN_ID": ""}, None),
        ({"domain_from": "env:RACK"}, {"RACK": "rack3"}, "rack3"),
        ({"domain": "rack1"}, {"FT_DOMAIN_ID": "rack2"}, "rack1"),
        ({"domain": "rack1", "domain_from": SILENT}, {}, "rack1"),
        ({"domain_from": SILENT}, {"FT_DOMAIN_ID": "rack2"}, "rack2"),
        ({"domain_from": "env:RACK"}, {"FT_DOMAIN_ID": "", "RACK": "rack3"}, "rack3"),
    ],
)
def test_a_domain_comes_from_the_command_then_from_the_environment_then_from_its_source(
    conf: dict[str, str], env: dict[str, str], domain: str | None
) -> None:
    """And a source that is not needed is not used."""
    assert parse(conf, env=env).node.domain_id == domain


@pytest.mark.parametrize(
    ("conf", "env", "unit"),
    [
        ({}, {"FT_UNIT_ID": "u0"}, None),
        ({"unit": "u1"}, {}, "u1"),
        ({"unit_from": "env:SLURM_ARRAY_TASK_ID"}, {"SLURM_ARRAY_TASK_ID": "7"}, "7"),
        ({"unit": "u1", "unit_from": SILENT}, {}, "u1"),
    ],
)
def test_a_unit_comes_from_the_command_then_from_its_source(
    conf: dict[str, str], env: dict[str, str], unit: str | None
) -> None:
    assert parse(conf, env=env).node.unit_id == unit


def test_a_node_is_called_what_slurm_calls_it_else_what_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "vm-17")
    conf = {"domain_from": "hostname:^[a-z]+", "unit_from": "hostname:[0-9]+$"}
    for env, place in (
        ({"SLURMD_NODENAME": "rack-3"}, ("rack", "3")),
        ({"SLURMD_NODENAME": ""}, ("vm", "17")),
        ({}, ("vm", "17")),
    ):
        node = parse(conf, env=env).node
        assert (node.domain_id, node.unit_id) == place


@pytest.mark.parametrize("env", [{"SLURMD_NODENAME": "gpu7"}, {}], ids=["slurm", "machine"])
@pytest.mark.parametrize(
    ("conf", "fact"),
    [
        ({"segment": "2"}, "segment=2 needs every node's domain, and node {} has none: set domain_from"),
        ({"spread": "domains"}, "spread=domains needs every node's domain, and node {} has none: set domain_from"),
        ({"segment": "2", "unit": "u1", "unit_size": "2"}, "segment=2 needs every node's domain, and node {} has none"),
        ({"unit_size": "2"}, "unit_size=2 needs every node's unit, and node {} has none: set unit_from, for example"),
        ({"unit_size": "2", "segment": "2", "domain": "a"}, "unit_size=2 needs every node's unit, and node {} has"),
        ({"domain_from": "env:RACK"}, "domain_from=env:RACK says nothing of node {}: RACK is not set"),
        ({"unit_from": "env:RACK"}, "unit_from=env:RACK says nothing of node {}: RACK is not set"),
    ],
)
def test_a_node_of_which_too_little_is_known_is_named_with_what_to_set(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], conf: dict[str, str], fact: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "vm-17")
    with pytest.raises(ConfigError) as caught:
        parse(conf, env=env)
    assert str(caught.value).startswith(fact.format(env.get("SLURMD_NODENAME", "vm-17")))


@pytest.mark.parametrize(
    ("conf", "ways"),
    [
        ({"segment": "2"}, ["domain_from", "ftr docs placement", "on each node domain or FT_DOMAIN_ID"]),
        ({"unit_size": "2"}, ["unit_from=env:SLURM_ARRAY_TASK_ID", "on each node unit"]),
    ],
)
def test_an_error_about_a_missing_name_lists_every_way_to_give_it(conf: dict[str, str], ways: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(conf)
    assert [way for way in ways if way not in str(caught.value)] == []


@pytest.mark.parametrize(
    "conf",
    [
        {"segment": "2", "domain": "rack1"},
        {"spread": "domains", "domain_from": "env:RACK"},
        {"unit_size": "2", "unit": "u1"},
        {"unit_size": "2", "unit_from": "env:RACK"},
        {"unit_size": "2", "segment": "2", "unit_from": "env:RACK", "domain_from": "env:RACK"},
        {"ranks": "topology", "policy": "elastic", "grow": "next"},
    ],
)
def test_a_node_of_which_enough_is_known_is_fine(conf: dict[str, str]) -> None:
    assert parse(conf, env={"RACK": "rack3"}).run.placement_rules.min_nodes == 2


@pytest.mark.parametrize(
    "conf",
    [
        {"segment": "2"},
        {"spread": "domains"},
        {"unit_size": "2"},
        {"domain_from": SILENT, "unit_from": SILENT},
        {"segment": "2", "unit_size": "2", "domain_from": "env:RACK", "unit_from": "env:RACK"},
    ],
)
def test_a_host_that_is_no_node_has_no_location_and_asks_no_source(conf: dict[str, str]) -> None:
    parsed = parse(conf, env={"RACK": "rack3"}, is_node=False)
    assert (parsed.node.domain_id, parsed.node.unit_id) == (None, None)
    assert parsed.run.as_dict() != parse().run.as_dict()


def test_only_locating_a_node_runs_its_source(tmp_path: Path) -> None:
    mark = tmp_path / "was run"
    settings = parse({"domain_from": f"command:touch '{mark}' && echo rack3"}, is_node=False)
    assert not mark.exists()
    assert locate_node(settings, {"PATH": "/usr/bin:/bin"}).node.domain_id == "rack3"
    assert mark.exists()


@pytest.mark.parametrize("key", ["domain_from", "unit_from"])
@pytest.mark.parametrize("is_node", [True, False])
@pytest.mark.parametrize("source", ["", "rack7", "env", "nvlink:0", "slurm-topology:0", "hostname:("])
def test_a_source_that_is_none_is_refused_even_where_it_is_not_asked(key: str, is_node: bool, source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({key: source, **WHERE}, is_node=is_node)
    assert str(caught.value).startswith(f"{key}={source}")


# --- the config file --------------------------------------------------------------------------------


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_config_file_fills_in_what_the_command_leaves_out(tmp_path: Path) -> None:
    path = write(tmp_path / "ft.toml", 'lease_timeout = 9\nbeat_interval = 2.5\ndomain = "a,b"\nis_host = true\n')
    parsed = parse({"config": path, "lease_timeout": "8"})
    assert (parsed.run.lease_s, parsed.run.beat_s) == (8.0, 2.5)
    assert (parsed.node.domain_id, parsed.node.is_host) == ("a,b", True)


def test_a_config_file_goes_before_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path / "ft.toml", 'infra_rank = 7\ndomain = "rack7"\n')
    node = parse({"config": path}, env={"FT_INFRA_RANK": "3", "FT_DOMAIN_ID": "rack3"}).node
    assert (node.infra_rank, node.domain_id) == (7, "rack7")


def test_a_config_file_holds_sources_with_commas(tmp_path: Path) -> None:
    path = write(
        tmp_path / "ft.toml",
        """
        segment = 2
        unit_size = 2
        domain_from = 'hostname:^([a-z]{2,4})-(r[0-9]{1,2})'
        unit_from = "command:printf '%s,%s' $ROW $RACK"
        """,
    )
    parsed = parse({"config": path}, env={"SLURMD_NODENAME": "hall-r12-gpu7", "ROW": "2", "RACK": "12"})
    assert (parsed.node.domain_id, parsed.node.unit_id) == ("hall-r12", "2,12")
    assert (parsed.run.segment, parsed.run.unit_size) == (2, 2)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("lease_timeout = ", "cannot be read"),
        ("lease_timout = 5", "unknown --rdzv-conf key 'lease_timout'"),
        ('lease_timeout = "soon"', "lease_timeout=soon is malformed"),
        ("[lease_timeout]\nx = 1", "is malformed"),
        ("[run]\nlease_timeout = 5", "unknown --rdzv-conf key 'run'"),
        ("infra_rank = 1.5", "infra_rank=1.5 is malformed"),
        ("segment = 0", "segment=0 would place no node"),
        ("segment = 3", "segment=3 does not divide MIN of --nnodes=2:4: make it --nnodes=3:4"),
        ('ranks = "fixed"', "ranks=fixed is malformed: it must be sticky or topology"),
        ('domain_from = "rack"', "domain_from=rack is no source"),
    ],
)
def test_a_mistake_in_a_config_file_is_told_like_one_in_the_command(tmp_path: Path, text: str, fact: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"config": write(tmp_path / "ft.toml", text)})
    assert fact in str(caught.value)


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        parse({"config": str(missing)})
    with pytest.raises(ConfigError, match="cannot be read"):
        parse({"config": str(tmp_path)})


def test_a_config_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ft.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        parse({"config": str(path)})


# --- agreeing on a run ------------------------------------------------------------------------------


def test_what_nodes_compare_is_what_must_agree_and_nothing_else() -> None:
    base = parse().run.as_dict()
    for conf in ({"infra_rank": "3"}, {"domain": "x"}, {"is_host": "1"}, {"timeout": "1"}):
        assert parse(conf).run.as_dict() == base
    assert parse(endpoint="other:1").run.as_dict() == base
    assert parse(run_id="other job").run.as_dict() == base, "another run is found out by its id"
    for key in ("join_timeout", "last_call_timeout", "settle_s", "store_grace"):
        assert parse({key: "77"}).run.as_dict() != base
    assert parse({"lease_timeout": "6"}).run.as_dict() != base
    assert parse({"beat_interval": "0.9"}).run.as_dict() != base
    assert parse(max_nodes=5).run.as_dict() != base
    assert parse(min_nodes=3).run.as_dict() != base


@pytest.mark.parametrize("values", [("5", "5.0", 5, 5.0, "05")])
def test_how_a_number_was_written_makes_no_difference(values: tuple[Any, ...]) -> None:
    first = parse({"lease_timeout": values[0]}).run.as_dict()
    assert all(parse({"lease_timeout": value}).run.as_dict() == first for value in values)


def test_differences_are_told_with_both_values_by_the_names_users_know() -> None:
    mine, theirs = parse({"lease_timeout": "6"}).run, parse(max_nodes=9).run
    assert differing_keys(mine.as_dict(), theirs.as_dict()) == [
        "lease_timeout (here 6.0, the run has 5.0)",
        "nnodes (here 2:4, the run has 2:9)",
    ]
    assert differing_keys(mine.as_dict(), mine.as_dict()) == []
    assert differing_keys({}, {"new": "1"}) == ["new (here unset, the run has 1)"]


@pytest.mark.parametrize(
    ("conf", "difference"),
    [
        ({"segment": "2"}, "segment (here 2, the run has 1)"),
        ({"unit_size": "2"}, "unit_size (here 2, the run has 1)"),
        ({"ranks": "topology"}, "ranks (here topology, the run has sticky)"),
        ({"spread": "domains"}, "spread (here domains, the run has none)"),
        ({"policy": "elastic"}, "policy (here elastic, the run has fixed)"),
        ({"grow": "next"}, "grow (here next, the run has now)"),
        ({"domain_from": "nvlink"}, "domain_from (here nvlink, the run has unset)"),
        ({"unit_from": "env:RACK"}, "unit_from (here env:RACK, the run has unset)"),
    ],
)
def test_nodes_must_agree_on_how_they_are_placed(conf: dict[str, str], difference: str) -> None:
    mine, theirs = parse(conf, is_node=False).run, parse().run
    assert differing_keys(mine.as_dict(), theirs.as_dict()) == [difference]


# --- the table in the docs --------------------------------------------------------------------------


def documented_fields() -> list[dataclasses.Field[Any]]:
    fields = [item for owner in OWNERS for item in dataclasses.fields(owner)]
    return [item for item in fields if "key" in item.metadata]


def test_the_table_lists_every_key_once_with_its_default_and_meaning() -> None:
    rows = settings_table().splitlines()[2:]
    keys = [row.split("`")[1] for row in rows]
    assert keys == [*(item.metadata["key"] for item in documented_fields()), "config"]
    for item, row in zip(documented_fields(), rows, strict=False):
        assert item.metadata["doc"] in row
        if item.default is not None:
            assert f"`{item.default}`" in row
        assert len(row.split(" | ")) == 4


@pytest.mark.parametrize("item", documented_fields(), ids=lambda item: item.metadata["key"])
def test_every_key_of_the_table_can_be_set(item: dataclasses.Field[Any]) -> None:
    values = {"float": "4", "int": "2", "bool": "0" if item.default is True else "1", "str": "x"}
    key = item.metadata["key"]
    special = {
        "hang_timeout": "auto",
        "startup_timeout": "60",
        "beat_interval": "0.5",
        "domain_from": "env:HERE",
        "unit_from": "env:HERE",
        "state_token": "secret",
    }
    if isinstance(item.default, StrEnum):
        special[key] = next(choice for choice in type(item.default) if choice != item.default)
    value = special.get(key) or next(text for kind, text in values.items() if str(item.type).startswith(kind))
    needed = {"segment": {"domain": "a"}, "spread": {"domain": "a"}, "unit_size": {"unit": "a"}}.get(key, {})
    assert parse({key: value, **needed}, env={"HERE": "x"}) != parse(needed)


# --- hangs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "rules"),
    [
        ({}, HangRules()),
        ({"hang_timeout": "off"}, HangRules()),
        ({"hang_timeout": 0}, HangRules()),
        ({"hang_timeout": "30"}, HangRules(hang_s=30.0)),
        ({"hang_timeout": 30.5}, HangRules(hang_s=30.5)),
        ({"hang_timeout": "AUTO"}, HangRules(is_auto=True)),
        ({"startup_timeout": "300"}, HangRules(startup_s=300.0)),
        ({"hang_timeout": "auto", "startup_timeout": 300}, HangRules(is_auto=True, startup_s=300.0)),
    ],
)
def test_when_a_rank_is_late(conf: dict[str, Any], rules: HangRules) -> None:
    assert parse(conf).run.hang_rules == rules
    assert rules.is_on == bool(conf and str(conf.get("hang_timeout")) not in ("off", "0"))


@pytest.mark.parametrize("text", ["soon", "-3", "nan", "inf", "1e400", ""])
def test_a_hang_timeout_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="hang_timeout="):
        parse({"hang_timeout": text})


@pytest.mark.parametrize("key", ["hang_timeout", "startup_timeout"])
def test_a_rank_is_late_only_after_a_dead_node_would_be_known(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=5 must be more than lease_timeout=5"):
        parse({key: "5"})


# --- what is recorded and shown ---------------------------------------------------------------------


def test_a_state_that_others_can_reach_needs_a_token() -> None:
    with pytest.raises(ConfigError, match="FT_STATE_TOKEN"):
        parse({"state_port": "8080", "state_addr": "0.0.0.0"})
    assert (
        parse({"state_port": "8080", "state_addr": "0.0.0.0"}, env={"FT_STATE_TOKEN": "secret"}).state.token == "secret"
    )
    assert parse({"state_port": "8080", "state_addr": "0.0.0.0", "state_token": "given"}).state.token == "given"
    assert parse({"state_port": "8080", "state_addr": "::1"}).state.token is None
    assert parse({"state_addr": "0.0.0.0"}).state.port is None, "nothing is served"


@pytest.mark.parametrize(
    "conf", [{"state_port": "65536"}, {"state_port": "http"}, {"state_log_mb": "0"}, {"state_history": "-1"}]
)
def test_what_cannot_be_recorded_or_shown_is_told(conf: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(conf))):
        parse(conf)


def test_what_is_recorded_is_the_hosts_own_affair() -> None:
    assert parse({"state_dir": "/a"}).run.as_dict() == parse({}).run.as_dict()


# --- names that are given ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 5000, "a\nb", "\udcff"], ids=["empty", "blank", "long", "lines", "bytes"]
)
@pytest.mark.parametrize("key", ["domain", "unit"])
def test_a_name_that_is_given_is_checked_as_one_that_is_found(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} says .* of node .*: make it one printable line"):
        parse({key: name})


def test_a_domain_in_the_environment_is_checked_too_and_a_blank_one_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^FT_DOMAIN_ID says .* of node gpu3: make it one printable line"):
        parse(env={"FT_DOMAIN_ID": "x" * 5000, "SLURMD_NODENAME": "gpu3"})
    assert parse(env={"FT_DOMAIN_ID": " "}).node.domain_id is None


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}, True])
def test_a_name_is_text(value: object) -> None:
    with pytest.raises(ConfigError, match="is malformed: it must be text"):
        parse({"domain": value})


def test_a_given_infra_rank_wins_over_a_bad_one_in_the_environment() -> None:
    env = {"SLURM_PROCID": "x", "FT_INFRA_RANK": "y"}
    assert parse({"infra_rank": "3"}, env=env).node.infra_rank == 3
    assert parse(env=env, is_node=False).node.infra_rank is None


def test_the_number_of_nodes_that_is_proposed_works() -> None:
    for conf, min_nodes, max_nodes in (
        ({"segment": "2", "domain": "a"}, 3, 3),
        ({"segment": "2", "unit_size": "4", "domain": "a", "unit": "u"}, 1, 8),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(conf, min_nodes=min_nodes, max_nodes=max_nodes)
        low, _, high = str(caught.value).partition("make it --nnodes=")[2].partition(",")[0].partition(":")
        assert parse(conf, min_nodes=int(low), max_nodes=int(high))
