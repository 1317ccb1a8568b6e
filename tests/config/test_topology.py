"""A node's domain or unit from every kind of source, and the error if a source gives no name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.config import topology
from ft_rendezvous.config.topology import SourceInput, find_name, split_source
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.text import MAX_NAME_CHARS

HOSTNAME = "row2-rack7-gpu3"


def find(source: str, env: Mapping[str, str] | None = None, hostname: str = HOSTNAME) -> str:
    return find_name("domain_from", source, SourceInput(hostname, env or {}))


def refusal(source: str, env: Mapping[str, str] | None = None, hostname: str = HOSTNAME) -> str:
    """What a source lacks. The message always names the setting and the node first."""
    with pytest.raises(ConfigError) as caught:
        find(source, env, hostname)
    fact, of, lack = str(caught.value).partition(f" of node {hostname}: ")
    assert fact.startswith(f"domain_from={source} says ")
    assert of
    assert lack
    return lack


# --- what is a source -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("env:RACK", ("env", "RACK")),
        ("slurm-topology", ("slurm-topology", "")),
        ("slurm-topology:2", ("slurm-topology", "2")),
        ("hostname:^(rack[0-9]+):", ("hostname", "^(rack[0-9]+):")),
        ("nvlink", ("nvlink", "")),
        ("command:echo a:b", ("command", "echo a:b")),
    ],
)
def test_a_source_is_a_kind_and_a_detail(source: str, parts: tuple[str, str]) -> None:
    assert split_source("domain_from", source) == parts


@pytest.mark.parametrize("source", ["", "rack7", "Env:RACK", "env :RACK", "slurm", "file:/etc/rack", ":RACK"])
def test_an_unknown_kind_is_told_with_all_that_are_known(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_source("unit_from", source)
    assert str(caught.value) == (
        f"unit_from={source} is no source: use env:<variable>, slurm-topology[:<level>], hostname:<regex>, nvlink or "
        "command:<command>"
    )


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("env", "env:<variable>"),
        ("env:", "env:<variable>"),
        ("hostname", "hostname:<regex>"),
        ("hostname:", "hostname:<regex>"),
        ("command", "command:<command>"),
        ("command:", "command:<command>"),
        ("nvlink:", "nvlink"),
        ("nvlink:0", "nvlink"),
    ],
)
def test_a_detail_too_few_or_too_many_is_told_with_the_form(source: str, form: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_source("domain_from", source)
    assert str(caught.value) == f"domain_from={source} is no source: the form is {form}"


@pytest.mark.parametrize("level", ["", "0", "00", "x", "-1", "1.5", " 1", "²", "٣"])
def test_a_level_that_is_none_is_told_with_what_the_first_one_is(level: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_source("domain_from", f"slurm-topology:{level}")
    assert str(caught.value) == (
        f"domain_from=slurm-topology:{level}: the level is a number, 1 for the switch or block nearest to the node"
    )


@pytest.mark.parametrize("regex", ["(", "^(rack[0-9]+", "*", "[a-", "(?P<rack>a)(?P<rack>b)", "a{2,1}"])
def test_an_expression_that_is_none_is_shown_with_what_is_wrong_in_it(regex: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_source("domain_from", f"hostname:{regex}")
    assert str(caught.value).startswith(f"domain_from=hostname:{regex} is no regular expression: ")
    assert "at position " in str(caught.value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(
    source=st.text(max_size=12)
    | st.builds(str.__add__, st.sampled_from(["env:", "nvlink:", "slurm-topology:", "hostname:"]), st.text(max_size=12))
)
def test_any_text_is_a_source_or_a_mistake_that_is_told(source: str) -> None:
    try:
        kind, detail = split_source("domain_from", source)
    except ConfigError:
        return
    assert source in (kind, f"{kind}:{detail}")


# --- what is a name ---------------------------------------------------------------------------------


def test_a_name_is_bare_of_the_blanks_around_it() -> None:
    assert find("env:RACK", {"RACK": " rack 7\n"}) == "rack 7"


@pytest.mark.parametrize("name", ["x" * MAX_NAME_CHARS, "rack 7", "räk,7=a:b", "🚀"])
def test_a_name_may_be_any_short_line(name: str) -> None:
    assert find("env:RACK", {"RACK": name}) == name


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * (MAX_NAME_CHARS + 1), f"'{'x' * MAX_NAME_CHARS}'"),
        ("rack7\nrack8", r"'rack7\nrack8'"),
        ("\033[31mrack7", r"'\x1b[31mrack7'"),
        ("rack\udcff", r"'rack\udcff'"),
    ],
    ids=["long", "two lines", "coloured", "not text"],
)
def test_what_is_no_name_is_shown_with_what_is_one(value: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find("env:RACK", {"RACK": value})
    assert str(caught.value) == (
        f"domain_from=env:RACK says {shown} of node {HOSTNAME}: make it one printable line of at most 200 characters"
    )


@given(value=st.text(max_size=20) | st.text(min_size=MAX_NAME_CHARS - 1, max_size=MAX_NAME_CHARS + 2))
def test_a_name_is_one_short_line_or_refused(value: str) -> None:
    try:
        name = find("env:RACK", {"RACK": value})
    except ConfigError:
        return
    assert name == value.strip()
    assert name.isprintable()
    assert 0 < len(name) <= MAX_NAME_CHARS


def test_an_error_names_the_setting_it_is_about() -> None:
    with pytest.raises(ConfigError, match=r"^unit_from=env:RACK says nothing of node gpu3: RACK is not set"):
        find_name("unit_from", "env:RACK", SourceInput("gpu3", {}))


# --- env --------------------------------------------------------------------------------------------


def test_a_variable_of_the_node() -> None:
    assert find("env:SLURM_ARRAY_TASK_ID", {"SLURM_ARRAY_TASK_ID": "12", "RACK": "rack7"}) == "12"


@pytest.mark.parametrize("env", [{}, {"RACK": ""}, {"RACK": " \n"}], ids=["unset", "empty", "blank"])
def test_a_variable_that_says_nothing_is_to_be_set(env: dict[str, str]) -> None:
    assert refusal("env:RACK", env) == "RACK is not set in its environment: set it before torchrun starts"


def test_a_source_sees_the_nodes_environment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACK", "of the test")
    assert refusal("env:RACK", {}) == "RACK is not set in its environment: set it before torchrun starts"
    assert find("command:echo ${RACK-none}", {}) == "none"
    assert find("command:echo ${RACK-none}", {"RACK": "rack7"}) == "rack7"


# --- slurm-topology ---------------------------------------------------------------------------------


def slurm(address: str, pattern: str | None) -> dict[str, str]:
    return {"SLURM_TOPOLOGY_ADDR": address, **({"SLURM_TOPOLOGY_ADDR_PATTERN": pattern} if pattern else {})}


@pytest.mark.parametrize(
    ("address", "pattern", "names"),
    [
        ("leaf1.gpu3", "switch.node", ["leaf1"]),
        ("root.cell1.leaf1.gpu3", "switch.switch.switch.node", ["root.cell1.leaf1", "root.cell1", "root"]),
        ("block7.gpu3", "block.node", ["block7"]),
        ("s0.s1.gpu3.example.org", "switch.switch.node", ["s0.s1", "s0"]),
        ("s0.s1.gpu3", None, ["s0.s1", "s0"]),
    ],
    ids=["one switch", "three switches", "block", "dots in the node's name", "no pattern"],
)
def test_what_is_above_a_node_is_named_by_the_path_to_it(address: str, pattern: str | None, names: list[str]) -> None:
    env = slurm(address, pattern)
    assert find("slurm-topology", env) == names[0]
    assert [find(f"slurm-topology:{level}", env) for level in range(1, len(names) + 1)] == names


def test_a_level_above_the_highest_is_told_with_how_many_there_are() -> None:
    env = slurm("root.leaf1.gpu3", "switch.switch.node")
    for level in (3, 99):
        lack = refusal(f"slurm-topology:{level}", env)
        assert lack == f"SLURM_TOPOLOGY_ADDR=root.leaf1.gpu3 has no level {level}, only 2: choose a lower one"


@pytest.mark.parametrize("level", ["", ":1", ":2"])
@pytest.mark.parametrize(
    "env",
    [{}, slurm("", ""), slurm("gpu3", None), slurm("gpu3", "node"), slurm("gpu3.example.org", "node")],
    ids=["no SLURM", "empty", "no pattern", "no plugin", "no plugin and a name with dots"],
)
def test_a_cluster_without_a_topology_is_told_what_it_needs(env: dict[str, str], level: str) -> None:
    address = env.get("SLURM_TOPOLOGY_ADDR", "")
    assert refusal(f"slurm-topology{level}", env) == (
        f"SLURM_TOPOLOGY_ADDR={address} names no switch or block: the cluster needs a TopologyPlugin, and torchrun "
        "must be started by srun"
    )


# --- hostname ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regex", "name"),
    [
        ("rack[0-9]+", "rack7"),
        ("^(row[0-9]+)", "row2"),
        ("^(row[0-9]+)-(rack[0-9]+)", "row2-rack7"),
        ("row([0-9]+)-rack([0-9]+)", "2-7"),
        ("(?:row[0-9]+)-rack[0-9]+", "row2-rack7"),
        ("(?P<rack>rack[0-9]+)", "rack7"),
        ("(hall[0-9]+-)?(row[0-9]+)", "row2"),
        ("^[^:]*$", HOSTNAME),
    ],
    ids=["no group", "one group", "two groups", "parts", "no capture", "named", "optional", "all"],
)
def test_a_part_of_the_hosts_name(regex: str, name: str) -> None:
    assert find(f"hostname:{regex}") == name


def test_a_name_that_does_not_match_is_told() -> None:
    assert refusal("hostname:^rack").startswith("its name does not match: change the expression, or ")


def test_a_match_of_nothing_is_no_name() -> None:
    with pytest.raises(
        ConfigError, match=rf"^domain_from=hostname:x\* says '' of node {HOSTNAME}: make it one printable line"
    ):
        find("hostname:x*")


# --- nvlink -----------------------------------------------------------------------------------------

UUID = "50000000-0000-0000-0000-000000000004"
OTHER_UUID = "dc6e40c4-d722-4357-9ba6-5291dd461278"
NO_UUID = "00000000-0000-0000-0000-000000000000"

Smi = Callable[[str], dict[str, str]]


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    """An environment in which nvidia-smi is a shell script and no other command exists."""

    def write(script: str) -> dict[str, str]:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return write


def gpu(clique: str, cluster: str, state: str = "Completed", status: str = "Success") -> str:
    """A part of what `nvidia-smi -q` prints for a GPU."""
    return f"""
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    GPU UUID                              : GPU-1182579c-5a69-8e8e-cb7a-e6e0b65d47c7
    PCI
        Bus Id                            : 00000008:01:00.0
    Fabric
        State                             : {state}
        Status                            : {status}
        CliqueId                          : {clique}
        ClusterUUID                       : {cluster}
        Health
            Bandwidth                     : N/A
    Processes                             : None
"""


def print_gpus(*gpus: str) -> str:
    head = "\n==============NVSMI LOG==============\n\nTimestamp : Mon Jan  5 12:00:00 2026\n"
    return f"[ \"$*\" = -q ] || exit 2\n/bin/cat <<'END'\n{head}{''.join(gpus)}\nEND"


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        ([gpu("0", UUID)], f"{UUID}.0"),
        ([gpu("4026", OTHER_UUID)] * 4, f"{OTHER_UUID}.4026"),
        ([gpu("N/A", UUID)] * 2, UUID),
    ],
    ids=["one GPU", "four GPUs", "no clique"],
)
def test_the_nvlink_domain_is_cluster_and_clique(smi: Smi, gpus: list[str], name: str) -> None:
    assert find("nvlink", smi(print_gpus(*gpus))) == name


READY = gpu("0", UUID)


@pytest.mark.parametrize(
    ("gpus", "facts"),
    [
        ([gpu("N/A", "N/A", "N/A", "N/A")] * 2, "State N/A, Status N/A, CliqueId N/A, ClusterUUID N/A"),
        ([READY, gpu("N/A", "N/A", "In Progress", "N/A")], "State In Progress, Status N/A"),
        ([gpu("0", NO_UUID)] * 2, f"CliqueId 0, ClusterUUID {NO_UUID}"),
        ([READY, gpu("0", NO_UUID)], f"CliqueId 0, ClusterUUID {NO_UUID}"),
        ([gpu("0", UUID, status="Insufficient Resources")] * 2, "Status Insufficient Resources"),
        ([gpu("Unknown Error", "Unknown Error")], "ClusterUUID Unknown Error"),
    ],
    ids=["N/A", "one in progress", "zeros", "one of zeros", "failed", "not a UUID"],
)
def test_a_gpu_that_is_not_ready_is_told_with_its_facts(smi: Smi, gpus: list[str], facts: str) -> None:
    lack = refusal("nvlink", smi(print_gpus(*gpus)))
    assert lack.startswith("nvidia-smi -q says of the fabric of a GPU: State ")
    assert facts in lack
    assert "wait until every GPU's state is Completed" in lack


def test_gpus_without_a_fabric_are_told(smi: Smi) -> None:
    lack = refusal("nvlink", smi(print_gpus()))
    assert lack == "nvidia-smi -q shows no fabric: its GPUs are in no NVLink domain, use another source"


@pytest.mark.parametrize(
    ("gpus", "domains"),
    [
        ([gpu("1", UUID), gpu("1", OTHER_UUID)], [f"{UUID}.1", f"{OTHER_UUID}.1"]),
        ([gpu("1", UUID), gpu("2", UUID)], [f"{UUID}.1", f"{UUID}.2"]),
    ],
    ids=["clusters", "cliques"],
)
def test_gpus_in_several_nvlink_domains_are_told_with_these(smi: Smi, gpus: list[str], domains: list[str]) -> None:
    lack = refusal("nvlink", smi(print_gpus(*gpus)))
    assert lack.startswith(f"its GPUs are in several NVLink domains: {', '.join(domains)}: ")


def test_a_node_without_nvidia_smi_is_told(tmp_path: Path) -> None:
    assert refusal("nvlink", {"PATH": str(tmp_path)}).startswith("nvidia-smi -q could not be started: ")


def test_an_nvidia_smi_that_cannot_be_run_is_told(smi: Smi, tmp_path: Path) -> None:
    env = smi("exit 0")
    (tmp_path / "nvidia-smi").chmod(0o644)
    assert refusal("nvlink", env).startswith("nvidia-smi -q could not be started: ")


def test_an_nvidia_smi_that_fails_is_told_with_what_it_said(smi: Smi) -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    lack = refusal("nvlink", smi(f'echo "{said}"; exit 9'))
    assert lack == f"nvidia-smi -q exited with 9 and said: {said}"


def test_an_nvidia_smi_that_hangs_is_not_waited_for(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "COMMAND_TIMEOUT_S", 0.2)
    lack = refusal("nvlink", smi("exec /bin/sleep 600"))
    assert lack == "nvidia-smi -q has not ended within 0.2 s: make it quicker"


# --- command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("echo rack7", "rack7"),
        ("printf rack7", "rack7"),
        ("printf '\\n  rack 7 \\n\\n'", "rack 7"),
        ("echo noise >&2; echo rack$ROW.$COLUMN", "rack2.7"),
        ("echo row2 rack7 | { read row rack; echo $rack; }", "rack7"),
        ("printf 'r\\303\\244k,7'", "räk,7"),
    ],
)
def test_a_command_says_it_in_one_line(command: str, name: str) -> None:
    assert find(f"command:{command}", {"ROW": "2", "COLUMN": "7"}) == name


@pytest.mark.parametrize(
    ("command", "count"),
    [("true", 0), ("printf ' \\n\\n'", 0), ("echo rack7 >&2", 0), ("echo a; echo b", 2), ("printf 'a\\n\\nb'", 3)],
)
def test_a_command_that_prints_another_number_of_lines_is_told(command: str, count: int) -> None:
    assert refusal(f"command:{command}") == f"the command printed {count} lines: make it print one"


@pytest.mark.parametrize(
    ("command", "lack"),
    [
        ("exit 3", "exited with 3 and said: nothing"),
        ("echo rack7; exit 3", "exited with 3 and said: rack7"),
        ("echo rack7; echo no such host >&2; exit 1", "exited with 1 and said: no such host"),
        ("printf 'one\\ntwo\\n\\n' >&2; exit 1", "exited with 1 and said: two"),
        ("kill -9 $$", "exited with -9 and said: nothing"),
    ],
)
def test_a_command_that_fails_is_told_with_what_it_said_last(command: str, lack: str) -> None:
    assert refusal(f"command:{command}") == f"the command {lack}"


def test_a_command_that_is_not_there_is_told() -> None:
    lack = refusal("command:/nowhere/which-rack")
    assert lack.startswith("the command exited with 127 and said: ")


def test_what_a_command_said_last_is_cut() -> None:
    lack = refusal("command:printf '%1000d' 7 | tr ' ' x; exit 1")
    assert lack.endswith(f" said: {'x' * MAX_NAME_CHARS}")


def test_a_command_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "COMMAND_TIMEOUT_S", 0.2)
    assert refusal("command:exec sleep 600") == "the command has not ended within 0.2 s: make it quicker"


def test_what_a_command_that_takes_too_long_has_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "COMMAND_TIMEOUT_S", 1.0)
    refusal(f"command:sleep 600 & echo $! > {tmp_path}/pid; wait")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError("it sleeps on")


def test_what_a_command_leaves_behind_is_not_waited_for() -> None:
    assert find("command:sleep 5 & echo rack7") == "rack7"


def test_a_command_reads_nothing_of_ours() -> None:
    assert find("command:cat; echo rack7") == "rack7"


def test_a_command_may_complain_in_any_bytes() -> None:
    assert find("command:printf '\\377' >&2; echo rack7") == "rack7"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("printf '%300d' 7 | tr ' ' x", f"'{'x' * MAX_NAME_CHARS}'"),
        ("printf '\\033[31mrack7'", r"'\x1b[31mrack7'"),
        ("printf 'rack\\t7'", r"'rack\t7'"),
    ],
    ids=["long", "coloured", "tabs"],
)
def test_a_command_that_prints_no_name_is_told_with_what_it_printed(command: str, shown: str) -> None:
    with pytest.raises(
        ConfigError, match=f"says .* of node {HOSTNAME}: make it one printable line of at most 200"
    ) as caught:
        find(f"command:{command}")
    assert f" says {shown} of node " in str(caught.value)


def test_a_command_that_prints_no_text_is_told() -> None:
    assert refusal("command:printf 'rack\\377'")
