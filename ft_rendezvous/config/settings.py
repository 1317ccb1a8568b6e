"""Settings: parsed and checked once, then frozen.

`RunSettings` must be the same on all nodes of a run. `NodeSettings` may differ from node to node. `StateSettings`
matter on the store host only. All come from `--rdzv-conf k=v,...`. A TOML file, named by `config=<path>`, adds what the
command line does not give; it can hold values with commas, at which torchrun splits. This module reads nothing: `load`
does.
"""

from __future__ import annotations

import dataclasses
import math
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
)
from ft_rendezvous.core.blame import BlameRules
from ft_rendezvous.core.capacity import PlacementRules, Policy, Ranks, Spread
from ft_rendezvous.core.hosting import NodeIdentity
from ft_rendezvous.core.losses import LossRules
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.core.progress import HangRules, ProgressFrom
from ft_rendezvous.core.sealing import SealRules
from ft_rendezvous.errors import ConfigError

IGNORED_KEYS = frozenset(
    # Keys of the c10d backend and of torchrun. They are accepted, so that only the backend changes in a command.
    {"timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"}
    | {"read_timeout", "store_type", "rank"}
)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that must be the same on all nodes of a run."""

    run_id: str
    min_nodes: int
    max_nodes: int
    lease_s: float = setting(
        "lease_timeout", 5.0, "A node that does not renew its lease for this long is dead, in seconds."
    )
    beat_s: float = setting("beat_interval", 1.0, "How often a node renews its lease, in seconds.")
    has_lifelines: bool = setting(
        "lifeline", True, "Whether each node holds a connection whose end tells the host at once that the node is dead."
    )
    lifeline_grace_s: float = setting(
        "lifeline_grace",
        0.2,
        "How long a node that lives may take to connect or beat again when its lifeline has ended, in seconds.",
    )
    join_s: float = setting(
        "join_timeout", 600.0, "How long a cycle waits for enough nodes, and a node waits for the store, in seconds."
    )
    last_call_s: float = setting(
        "last_call_timeout",
        45.0,
        "How long a cycle waits for survivors that stop their workers, and an elastic cycle for a larger world.",
    )
    settle_s: float = setting(
        "settle_s", 0.0, "How long to wait for more nodes when there are enough, or when a world can grow."
    )
    store_grace_s: float = setting(
        "store_grace",
        3.0,
        "How long the store host waits at the end for nodes that lost their lease in the exit barrier.",
    )
    max_cycles: int = setting(
        "max_cycles",
        0,
        "The run's restart budget: the run fails when workers have failed in this many cycles. 0: no limit.",
    )
    max_node_failures: int = setting(
        "max_node_failures", 3, "A node whose workers were the first to fail this often is quarantined. 0: never."
    )
    max_node_losses: int = setting(
        "max_node_losses",
        3,
        "A node that was lost this often within `quarantine_s` is parked: it trains only if too few others are there. "
        "0: never.",
    )
    quarantine_s: float = setting(
        "quarantine_s", 3600.0, "How long a quarantined node may not come back, and a node is parked, in seconds."
    )
    crash_loop: int = setting(
        "crash_loop",
        5,
        "The run fails when this many cycles in a row fail at their start with the same error. 0: never.",
    )
    crash_loop_s: float = setting(
        "crash_loop_s", 30.0, "How long the start of a cycle is, for `crash_loop`, in seconds."
    )
    group_size: int = setting(
        "group_size",
        0,
        "Nodes of a replica group, which seals and restarts for itself; see `ftr docs replica-groups`. 0: one group.",
    )
    min_groups: int = setting(
        "min_groups", 1, "With fewer groups than this, the run waits `join_timeout` for nodes and then fails."
    )
    max_group_failures: int = setting(
        "max_group_failures",
        3,
        "All groups restart when one of them failed this often in a row within `crash_loop_s` of its start. 0: never.",
    )
    has_lighthouse: bool = setting(
        "lighthouse", False, "Whether the store host runs a torchft lighthouse for the groups."
    )
    drain_grace_s: float = setting(
        "drain_grace_s", 60.0, "How long a draining node still trains, unless a worker calls at_checkpoint() earlier."
    )
    segment: int = setting("segment", 1, "Each block of this many consecutive node ranks is within one domain.")
    unit_size: int = setting(
        "unit_size", 1, "This many nodes of one `unit` train together, or none of them. 1: no units."
    )
    ranks: Ranks = setting(
        "ranks", Ranks.STICKY, "`sticky`: survivors keep their ranks. `topology`: every cycle is placed like the first."
    )
    spread: Spread = setting(
        "spread",
        Spread.NONE,
        "`none`: use up one domain after the other. `domains`: leave spares in every domain.",
    )
    policy: Policy = setting(
        "policy", Policy.FIXED, "`fixed`: MIN nodes train. `elastic`: all available nodes train, from MIN to MAX."
    )
    grow: Grow = setting(
        "grow", Grow.NOW, "When an elastic world grows: `now`, at the `next` cycle, or at a worker's `checkpoint`."
    )
    domain_from: str | None = setting(
        "domain_from", None, "Where nodes find their domains; see `ftr docs placement`. `domain` and FT_DOMAIN_ID win."
    )
    unit_from: str | None = setting("unit_from", None, "Where nodes find their units. `unit` wins.")
    hang_timeout: str = setting(
        "hang_timeout",
        "off",
        "A rank that makes no progress for this long is late, in seconds, or `auto`; see `ftr docs hangs`.",
    )
    startup_s: float = setting(
        "startup_timeout", 0.0, "The same before the first progress of any worker of a node, in seconds. 0: off."
    )
    progress_from: ProgressFrom = setting(
        "progress_from",
        ProgressFrom.CALLS,
        "`calls`: workers call progress() or watch_optimizer(). `log`: output of a worker is progress, too. "
        "`optimizer`: warm workers need no call.",
    )
    has_identical_workers: bool = setting(
        "identical_workers",
        False,
        "Every node has the same number of workers, with one role: torch need not count them. "
        "Default: TORCH_ELASTIC_WORKER_IDENTICAL.",
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

        if self.has_lifelines and not 0 < self.lifeline_grace_s < self.lease_s:
            raise ConfigError(
                f"lifeline_grace={self.lifeline_grace_s:g} must be more than 0 and less than "
                f"lease_timeout={self.lease_s:g}: set it in between, or lifeline=no"
            )
        self._check_hangs()
        self._check_blocks()
        self._check_groups()
        for key, source in (("domain_from", self.domain_from), ("unit_from", self.unit_from)):
            if source is not None:
                topology.split_source(key, source)

    def _check_hangs(self) -> None:
        rules = self.hang_rules
        for key, limit_s in (("hang_timeout", rules.hang_s), ("startup_timeout", rules.startup_s)):
            if limit_s is not None and limit_s <= self.lease_s:
                raise ConfigError(
                    f"{key}={limit_s:g} must be more than lease_timeout={self.lease_s:g}: until then a rank may wait "
                    "for a node that is dead; make it longer, or leave it out"
                )

    @property
    def hang_rules(self) -> HangRules:
        """When a rank is late. Raises ConfigError for a text that is no time."""
        text = self.hang_timeout.strip().lower()
        startup_s = self.startup_s or None
        if text in ("off", "no", "false", "0"):
            return HangRules(startup_s=startup_s)
        if text == "auto":
            return HangRules(is_auto=True, startup_s=startup_s)
        try:
            hang_s = float(text)
        except ValueError:
            hang_s = math.nan
        if not (math.isfinite(hang_s) and hang_s > 0):
            raise ConfigError(f"hang_timeout={self.hang_timeout} is no time: give seconds, `auto` or `off`")
        return HangRules(hang_s=hang_s, startup_s=startup_s)

    def _check_blocks(self) -> None:
        for key, size in (("segment", self.segment), ("unit_size", self.unit_size)):
            if size < 1:
                raise ConfigError(f"{key}=0 would place no node: leave it out, or make it 1 or more")
        if self.unit_size > 1 and self.unit_size % self.segment:
            raise ConfigError(
                f"unit_size={self.unit_size} is not a multiple of segment={self.segment}: a unit holds whole segments"
            )
        self._check_blocks_of_groups()
        rules = self.placement_rules
        if self.min_nodes % rules.block:
            key = "unit_size" if rules.needs_unit else "segment"
            raise ConfigError(
                f"{key}={rules.block} does not divide MIN of --nnodes={self.min_nodes}:{self.max_nodes}: "
                f"make it {self._nnodes_that_work()}, for example"
            )

    def _check_blocks_of_groups(self) -> None:
        size = self.group_size
        if size and self.unit_size > 1:
            raise ConfigError(f"unit_size={self.unit_size} and group_size={size} exclude each other: leave one out")
        if size and size % self.segment and self.segment % size:
            raise ConfigError(
                f"segment={self.segment} neither divides group_size={size} nor is a multiple of it: a segment is a "
                "part of a group, or holds whole groups"
            )

    def _nnodes_that_work(self) -> str:
        """The next larger numbers of nodes that hold whole blocks and groups."""
        step, size = self.placement_rules.step, self.group_size or 1
        least = -(-self.min_nodes // step) * step
        return f"--nnodes={least}:{max(least, -(-self.max_nodes // size) * size)}"

    def _check_groups(self) -> None:
        size, nnodes = self.group_size, f"--nnodes={self.min_nodes}:{self.max_nodes}"
        if not size:
            return
        if self.min_nodes % size or self.max_nodes % size:
            raise ConfigError(
                f"group_size={size} does not divide both numbers of {nnodes}: make it {self._nnodes_that_work()}, "
                "for example"
            )
        if not 1 <= self.min_groups <= self.min_nodes // size:
            raise ConfigError(
                f"min_groups={self.min_groups} is not between 1 and {self.min_nodes // size}, the groups of {nnodes} "
                f"with group_size={size}"
            )

    @property
    def wanted_groups(self) -> int:
        """How many groups the run forms if there are nodes for them."""
        most = self.max_nodes if self.policy is Policy.ELASTIC else self.min_nodes
        return most // self.group_size if self.group_size else 1

    @property
    def later_placement_rules(self) -> PlacementRules:
        """The rules of a common cycle after the first: groups that lack nodes are filled later."""
        rules = self.placement_rules
        if not self.group_size:
            return rules
        least = -(-self.min_groups * self.group_size // rules.step) * rules.step
        most = self.wanted_groups * self.group_size
        return dataclasses.replace(rules, min_nodes=min(least, most), largest=most, policy=Policy.ELASTIC)

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
            group_size=self.group_size,
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
            max_group_failures=self.max_group_failures,
        )

    @property
    def loss_rules(self) -> LossRules:
        return LossRules(max_node_losses=self.max_node_losses, window_s=self.quarantine_s)

    def as_dict(self) -> dict[str, str]:
        """The values as text, by their `--rdzv-conf` keys."""
        values = {key_of(item): getattr(self, item.name) for item in dataclasses.fields(self)}
        named = {key: str(value) for key, value in values.items() if value is not None}
        named["nnodes"] = f"{named.pop('min_nodes')}:{named.pop('max_nodes')}"
        del named["run_id"]
        return named


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """The settings of one node. They may differ from node to node."""

    endpoint_host: str
    endpoint_port: int
    local_addr: str | None = None
    infra_rank: int | None = setting(
        "infra_rank",
        None,
        "This node's place in the infrastructure. Default: from the environment; see `ftr docs placement`.",
    )
    domain_id: str | None = setting(
        "domain", None, "The name of the fabric or switch that this node shares with others. Default: FT_DOMAIN_ID."
    )
    unit_id: str | None = setting("unit", None, "The name of the allocation unit to which this node belongs.")
    is_host: bool | None = setting(
        "is_host",
        None,
        "Whether this node hosts the store. Default: whether the endpoint is this machine; see `ftr docs kubernetes`.",
    )
    health_check: str | None = setting(
        "health_check", None, "A command that must succeed before this node joins, and before it comes back."
    )
    health_check_s: float = setting("health_check_timeout", 60.0, "How long the health check may take, in seconds.")
    checks_gpus: bool = setting(
        "gpu_check",
        True,
        "Whether to run the GPU and NIC checks of nvidia-resiliency-ext, if it is installed and a GPU is there.",
    )
    verdict_file: str | None = setting(
        "verdict_file", None, "The JSON file to which the store host writes the verdict, before it closes the run."
    )
    lifeline_port: int = setting(
        "lifeline_port", 0, "The port at which the store host listens for lifelines. 0: any free port."
    )
    exit_command: str | None = setting(
        "exit_command",
        None,
        "A command that a node runs at its very end, with FT_VERDICT (`unknown`: the store was lost), FT_IS_RETRYABLE.",
    )
    job_index: int | None = None
    """This node's index in an Indexed Job of Kubernetes (JOB_COMPLETION_INDEX)."""
    hostname: str = ""
    is_pod: bool = False
    """Whether this node runs in a pod of Kubernetes."""
    shares_store: bool = True
    """Whether workers use the cycle's bootstrap store (torch's TORCH_DISABLE_SHARE_RDZV_TCP_STORE)."""

    @property
    def endpoint(self) -> str:
        return format_endpoint(self.endpoint_host, self.endpoint_port)

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(is_host=self.is_host, job_index=self.job_index, hostname=self.hostname, is_pod=self.is_pod)


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Where the store host writes and serves the state of a run. It does neither unless one of the first two is set."""

    directory: str | None = setting(
        "state_dir",
        None,
        "The directory for the run's events, one folder per run, on the store host; see `ftr docs state`.",
    )
    port: int | None = setting(
        "state_port", None, "The port at which the store host serves the run's page, API and metrics."
    )
    addr: str = setting(
        "state_addr", "127.0.0.1", "The address at which it serves them. An address that is not loopback needs a token."
    )
    token: str | None = setting(
        "state_token",
        None,
        "The secret that a client must send. Better set it in FT_STATE_TOKEN, which `ps` does not show.",
    )
    history: int = setting(
        "state_history", 100, "For how many cycles to keep the placement. Older cycles keep a summary."
    )
    log_mb: int = setting("state_log_mb", 100, "The size of a file of events at which the next file begins, in MB.")

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65536:
            raise ConfigError(f"state_port={self.port} is not a port: use 1 to 65535, or 0 for a free one")
        if self.port is not None and not is_loopback(self.addr) and not self.token:
            raise ConfigError(
                f"state_addr={self.addr} can be reached from other machines: set FT_STATE_TOKEN to a secret on the "
                "store host, or leave state_addr out and use ssh -L"
            )
        if self.log_mb < 1:
            raise ConfigError("state_log_mb=0 leaves no room for events: make it 1 or more")


@dataclass(frozen=True, kw_only=True)
class Settings:
    run: RunSettings
    node: NodeSettings
    state: StateSettings = field(default_factory=StateSettings)


OWNERS = {RunSettings: "run", NodeSettings: "node", StateSettings: "host"}
"""The scope of each class: `run` must be the same on all nodes, `node` may differ, `host` is for the store host."""


def parse_settings(
    *,
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    conf: Mapping[str, Any],
    env: Mapping[str, str],
    local_addr: str | None = None,
) -> Settings:
    """All settings, checked. Pure: `conf` holds what the TOML file adds, `env` is given, and no command is run.

    Raises ConfigError, which says what to change.
    """
    assert "config" not in conf, "the file that `config` names was not read"
    host, port = parse_endpoint(endpoint)
    _check_reachable(host, env)
    given = dict(conf)
    if "identical_workers" not in given and env.get("TORCH_ELASTIC_WORKER_IDENTICAL") and "FT_CYCLE_ID" not in env:
        # Where FT_CYCLE_ID is set, an agent of this backend has set the other variable for its own workers.
        given["identical_workers"] = env["TORCH_ELASTIC_WORKER_IDENTICAL"] == "1"
    check_known(given, {key for owner in OWNERS for key in fields_by_key(owner)} | IGNORED_KEYS | {"config"})
    run = RunSettings(run_id=run_id, min_nodes=min_nodes, max_nodes=max_nodes, **values_for(RunSettings, given))
    node = NodeSettings(
        endpoint_host=host,
        endpoint_port=port,
        local_addr=local_addr,
        shares_store=env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1",
        **values_for(NodeSettings, given),
    )
    token = given.get("state_token") or env.get("FT_STATE_TOKEN") or None
    state = StateSettings(**{**values_for(StateSettings, given), "token": token})
    return Settings(run=run, node=node, state=state)


def settings_from(min_nodes: int, max_nodes: int, conf: Mapping[str, Any]) -> RunSettings:
    """The settings of a run that is only thought of, checked like those of a run."""
    return RunSettings(run_id="none", min_nodes=min_nodes, max_nodes=max_nodes, **values_for(RunSettings, conf))


def differing_keys(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The settings that differ between a node and its run, with both values."""
    return [
        f"{key} (here {mine.get(key, 'unset')}, the run has {theirs.get(key, 'unset')})"
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
    ]


def settings_table() -> str:
    """The settings as a Markdown table. The docs contain it, and a test compares them."""
    rows = ["| `--rdzv-conf` key | default | scope | meaning |", "|---|---|---|---|"]
    for owner, scope in OWNERS.items():
        for item in dataclasses.fields(owner):
            if "key" in item.metadata:
                default = "" if item.default is None else f"`{item.default}`"
                rows.append(f"| `{item.metadata['key']}` | {default} | {scope} | {item.metadata['doc']} |")
    rows.append("| `config` | | node | A TOML file with any of these. The command line wins. |")
    return "\n".join(rows)


# --- parts ------------------------------------------------------------------------------------------


def _check_reachable(host: str, env: Mapping[str, str]) -> None:
    nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if is_loopback(host) and is_digits(nodes) and int(nodes) > 1:
        raise ConfigError(
            f"the endpoint {host} is a loopback address, but SLURM runs this job on {nodes} machines: pass "
            "--rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29400"
        )
