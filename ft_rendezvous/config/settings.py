"""Settings: parsed and checked once, then frozen.

`RunSettings` must agree on all nodes of a run, `NodeSettings` are one node's own. Both come from
`--rdzv-conf k=v,...`; a TOML file named by `config=<path>` fills in what the command line leaves out (and can
hold values with commas, which torchrun splits on). The environment is read here and in `launch/` alone.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ft_rendezvous.config import topology
from ft_rendezvous.config.addresses import format_endpoint, is_loopback, parse_endpoint
from ft_rendezvous.config.schema import (
    check_known,
    fields_by_key,
    is_digits,
    key_of,
    setting,
    values_for,
    with_config_file,
)
from ft_rendezvous.config.state_settings import StateSettings
from ft_rendezvous.core.blame import BlameRules
from ft_rendezvous.core.capacity import PlacementRules, Policy, Ranks, Spread
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.core.sealing import SealRules
from ft_rendezvous.errors import ConfigError

IGNORED_KEYS = frozenset(
    # Of c10d's dynamic rendezvous and of torchrun itself: accepted, so that one word changes in a command.
    {"timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"}
    | {"read_timeout", "store_type", "rank"}
)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What all nodes of a run must agree on."""

    run_id: str
    min_nodes: int
    max_nodes: int
    lease_s: float = setting("lease_timeout", 5.0, "A node that is not heard of for this long is dead.")
    beat_s: float = setting("beat_interval", 1.0, "How often a node renews its lease.")
    join_s: float = setting(
        "join_timeout", 600.0, "How long a cycle waits for enough nodes, and a node for the store, in seconds."
    )
    last_call_s: float = setting(
        "last_call_timeout",
        45.0,
        "How long a cycle waits for survivors that are stopping workers, and an elastic one for a larger world.",
    )
    settle_s: float = setting(
        "settle_s", 0.0, "How long to let more nodes come once there are enough, or once a world can grow."
    )
    store_grace_s: float = setting(
        "store_grace", 3.0, "How long the store host stays for nodes that lost their lease in the exit barrier."
    )
    max_cycles: int = setting(
        "max_cycles", 0, "The run's restart budget: so many cycles may end because workers failed; 0 is no limit."
    )
    max_node_failures: int = setting(
        "max_node_failures", 3, "A node whose workers were the first to fail so often is quarantined; 0: never."
    )
    quarantine_s: float = setting("quarantine_s", 3600.0, "How long a quarantined node may not come back.")
    crash_loop: int = setting(
        "crash_loop", 5, "So many cycles in a row that fail at their start on one error end the run; 0: never."
    )
    crash_loop_s: float = setting("crash_loop_s", 30.0, "What counts as the start of a cycle.")
    drain_grace_s: float = setting(
        "drain_grace_s", 60.0, "How long a draining node trains on, unless a worker says at_checkpoint() before."
    )
    segment: int = setting(
        "segment", 1, "Nodes come in blocks of so many, with consecutive node ranks, within one domain."
    )
    unit_size: int = setting("unit_size", 1, "So many nodes of one `unit` train together, or not at all; 1: no units.")
    ranks: Ranks = setting(
        "ranks", Ranks.STICKY, "`sticky`: survivors keep their ranks; `topology`: every cycle is placed anew."
    )
    spread: Spread = setting(
        "spread",
        Spread.NONE,
        "`domains`: choose who trains so that every domain keeps spares; `none`: fill domains up.",
    )
    policy: Policy = setting(
        "policy", Policy.FIXED, "`fixed`: MIN nodes train; `elastic`: as many as there are, from MIN to MAX."
    )
    grow: Grow = setting(
        "grow", Grow.NOW, "When an elastic world takes in more: `now`, at the `next` cycle, at a worker's `checkpoint`."
    )
    domain_from: str | None = setting(
        "domain_from", None, "Where nodes find their domains, see `ftr docs placement`; `domain` and FT_DOMAIN_ID win."
    )
    unit_from: str | None = setting("unit_from", None, "The same for their units; `unit` wins.")
    has_identical_workers: bool = setting(
        "identical_workers",
        False,
        "Every node has as many workers, of one role, so that torch need not count them; else as "
        "TORCH_ELASTIC_WORKER_IDENTICAL says.",
    )

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ConfigError("the run id is empty: pass --rdzv-id=<name of this job>")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ConfigError(f"--nnodes={self.min_nodes}:{self.max_nodes} is not MIN:MAX with 1 <= MIN <= MAX")
        if self.beat_s <= 0:
            raise ConfigError("beat_interval must be more than 0: a node that never beats is dead")
        if not self.lease_s > 3 * self.beat_s:
            raise ConfigError(
                f"lease_timeout={self.lease_s:g} must be more than 3 x beat_interval={self.beat_s:g}: "
                "one late beat must not kill a node"
            )

        self._check_blocks()
        for key, source in (("domain_from", self.domain_from), ("unit_from", self.unit_from)):
            if source is not None:
                topology.split_source(key, source)

    def _check_blocks(self) -> None:
        for key, size in (("segment", self.segment), ("unit_size", self.unit_size)):
            if size < 1:
                raise ConfigError(f"{key}=0 would place nobody: leave it out, or make it 1 or more")
        if self.unit_size > 1 and self.unit_size % self.segment:
            raise ConfigError(f"unit_size={self.unit_size} is no multiple of segment={self.segment}: units train whole")
        rules = self.placement_rules
        if self.min_nodes % rules.block:
            key = "unit_size" if rules.needs_unit else "segment"
            works = -(-self.min_nodes // rules.block) * rules.block
            raise ConfigError(
                f"{key}={rules.block} does not divide MIN of --nnodes={self.min_nodes}:{self.max_nodes}: "
                f"make it --nnodes={works}:{max(works, self.max_nodes)}, for example"
            )

    @property
    def placement_rules(self) -> PlacementRules:
        return PlacementRules(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            segment=self.segment,
            unit_size=self.unit_size,
            ranks=self.ranks,
            spread=self.spread,
            policy=self.policy,
        )

    @property
    def seal_rules(self) -> SealRules:
        return SealRules(
            placement=self.placement_rules,
            settle_s=self.settle_s,
            last_call_s=self.last_call_s,
            join_s=self.join_s,
            lease_s=self.lease_s,
        )

    @property
    def blame_rules(self) -> BlameRules:
        return BlameRules(
            max_cycles=self.max_cycles,
            max_node_failures=self.max_node_failures,
            quarantine_s=self.quarantine_s,
            crash_loop=self.crash_loop,
            crash_loop_s=self.crash_loop_s,
        )

    def as_dict(self) -> dict[str, str]:
        """By the names users know."""
        values = {key_of(item): getattr(self, item.name) for item in dataclasses.fields(self)}
        named = {key: str(value) for key, value in values.items() if value is not None}
        named["nnodes"] = f"{named.pop('min_nodes')}:{named.pop('max_nodes')}"
        del named["run_id"]
        return named


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One node's own."""

    endpoint_host: str
    endpoint_port: int
    local_addr: str | None = None
    infra_rank: int | None = setting(
        "infra_rank", None, "This node's place in the infrastructure; see `ftr docs placement` for its default."
    )
    domain_id: str | None = setting("domain", None, "What shares a fast fabric with this node; else FT_DOMAIN_ID.")
    unit_id: str | None = setting("unit", None, "The allocation unit this node is a part of.")
    is_host: bool | None = setting(
        "is_host", None, "Whether this node hosts the store; else whether the endpoint names this machine."
    )
    health_check: str | None = setting(
        "health_check", None, "A command that must succeed before this node joins, and before it comes back."
    )
    health_check_s: float = setting("health_check_timeout", 60.0, "How long it may take.")
    checks_gpus: bool = setting(
        "gpu_check", True, "Whether to run nvidia-resiliency-ext's GPU and NIC checks, where it and a GPU are there."
    )
    verdict_file: str | None = setting(
        "verdict_file", None, "Where the store host writes how the run ended, as JSON, before anybody hears of it."
    )
    exit_command: str | None = setting(
        "exit_command",
        None,
        "A command that a node runs last of all, with FT_VERDICT (`unknown`: the store was lost), FT_IS_RETRYABLE.",
    )
    shares_store: bool = True
    """Whether workers use the cycle's bootstrap store (torch's TORCH_DISABLE_SHARE_RDZV_TCP_STORE)."""

    @property
    def endpoint(self) -> str:
        return format_endpoint(self.endpoint_host, self.endpoint_port)


@dataclass(frozen=True, kw_only=True)
class Settings:
    run: RunSettings
    node: NodeSettings
    state: StateSettings = field(default_factory=StateSettings)


OWNERS = {RunSettings: "run", NodeSettings: "node", StateSettings: "host"}
"""Whose settings there are, and who must agree on them: all nodes, or nobody; some concern the store host alone."""


def log_level(env: Mapping[str, str] | None = None) -> str:
    """How much to log where nobody has configured logging."""
    return (os.environ if env is None else env).get("FT_LOGLEVEL", "INFO").upper()


def caught_signals(env: Mapping[str, str] | None = None) -> list[signal.Signals]:
    """The signals on which torch's agent stops its workers and goes."""
    env = os.environ if env is None else env
    names = env.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")
    return [signal.Signals[name.strip()] for name in names if name.strip() in signal.Signals.__members__]


def parse_settings(
    *,
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    conf: Mapping[str, Any],
    local_addr: str | None = None,
    env: Mapping[str, str] | None = None,
    is_node: bool = True,
) -> Settings:
    """All settings of a node, or of a host that is none, checked. Raises ConfigError with what to change."""
    env = os.environ if env is None else env
    host, port = parse_endpoint(endpoint)
    _check_reachable(host, env)
    given = with_config_file(conf)
    if "identical_workers" not in given and env.get("TORCH_ELASTIC_WORKER_IDENTICAL") and "FT_CYCLE_ID" not in env:
        # Where there is a cycle, the variable is what an agent of this process, or around it, has put there.
        given["identical_workers"] = env["TORCH_ELASTIC_WORKER_IDENTICAL"] == "1"
    check_known(given, {key for owner in OWNERS for key in fields_by_key(owner)} | IGNORED_KEYS | {"config"})
    run = RunSettings(run_id=run_id, min_nodes=min_nodes, max_nodes=max_nodes, **values_for(RunSettings, given))
    from_conf = values_for(NodeSettings, given)
    if is_node:
        if "infra_rank" not in from_conf:
            from_conf["infra_rank"] = _infra_rank_from(env)
        from_conf |= _find_place(run, from_conf, env)
    node = NodeSettings(
        endpoint_host=host,
        endpoint_port=port,
        local_addr=local_addr,
        shares_store=env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1",
        **from_conf,
    )
    token = given.get("state_token") or env.get("FT_STATE_TOKEN") or None
    state = StateSettings(**{**values_for(StateSettings, given), "token": token})
    return Settings(run=run, node=node, state=state)


def rules_from(min_nodes: int, max_nodes: int, conf: Mapping[str, Any]) -> PlacementRules:
    """Placement rules that belong to no run, checked as a run's are."""
    values = values_for(RunSettings, conf)
    return RunSettings(run_id="none", min_nodes=min_nodes, max_nodes=max_nodes, **values).placement_rules


def differing_keys(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What two nodes of one run disagree on, with both values."""
    return [
        f"{key} (here {mine.get(key, 'unset')}, the run has {theirs.get(key, 'unset')})"
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
    ]


def settings_table() -> str:
    """The settings as a markdown table; the docs include this text and a test compares them."""
    rows = ["| `--rdzv-conf` key | default | scope | meaning |", "|---|---|---|---|"]
    for owner, scope in OWNERS.items():
        for item in dataclasses.fields(owner):
            if "key" in item.metadata:
                default = "" if item.default is None else f"`{item.default}`"
                rows.append(f"| `{item.metadata['key']}` | {default} | {scope} | {item.metadata['doc']} |")
    rows.append("| `config` | | node | A TOML file with any of these; the command line wins. |")
    return "\n".join(rows)


# --- parts ------------------------------------------------------------------------------------------


def _find_place(run: RunSettings, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str | None]:
    """This node's domain and unit: what is given, else what the run's sources say. Raises if one is missing."""
    place = topology.Place(env.get("SLURMD_NODENAME") or socket.gethostname(), env)
    domain_id, unit_id = given.get("domain_id"), given.get("unit_id")
    if domain_id is not None:
        domain_id = topology.check_name("domain", domain_id, place)
    elif env.get("FT_DOMAIN_ID", "").strip():
        domain_id = topology.check_name("FT_DOMAIN_ID", env["FT_DOMAIN_ID"], place)
    elif run.domain_from is not None:
        domain_id = topology.find_name("domain_from", run.domain_from, place)
    if unit_id is not None:
        unit_id = topology.check_name("unit", unit_id, place)
    elif run.unit_from is not None:
        unit_id = topology.find_name("unit_from", run.unit_from, place)
    _check_place(run, domain_id, unit_id, place.hostname)
    return {"domain_id": domain_id, "unit_id": unit_id}


def _check_place(run: RunSettings, domain_id: str | None, unit_id: str | None, hostname: str) -> None:
    rules = run.placement_rules
    if domain_id is None and rules.needs_domain:
        needs = f"segment={run.segment}" if run.segment > 1 else f"spread={run.spread}"
        raise ConfigError(
            f"{needs} needs every node's domain, and node {hostname} has none: set domain_from (see "
            "ftr docs placement), or on each node domain or FT_DOMAIN_ID"
        )
    if unit_id is None and rules.needs_unit:
        raise ConfigError(
            f"unit_size={run.unit_size} needs every node's unit, and node {hostname} has none: set unit_from, "
            "for example unit_from=env:SLURM_ARRAY_TASK_ID, or on each node unit"
        )


def _infra_rank_from(env: Mapping[str, str]) -> int | None:
    for name in ("FT_INFRA_RANK", "SLURM_PROCID", "SLURM_NODEID", "GROUP_RANK"):
        text = env.get(name, "")
        if text:
            if not is_digits(text):
                raise ConfigError(f"{name}={text} is not a rank: it must be an integer, 0 or more")
            base = env.get("FT_INFRA_RANK_BASE", "") if name == "SLURM_PROCID" else ""
            return int(text) + (int(base) if is_digits(base) else 0)
    return None


def _check_reachable(host: str, env: Mapping[str, str]) -> None:
    nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if is_loopback(host) and is_digits(nodes) and int(nodes) > 1:
        raise ConfigError(
            f"the endpoint {host} is a loopback address, but SLURM runs this job on {nodes} machines: pass "
            "--rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29400"
        )
