"""Settings: parsed and checked once, then frozen.

`RunSettings` must agree on all nodes of a run, `NodeSettings` are one node's own. Both come from
`--rdzv-conf k=v,...`; a TOML file named by `config=<path>` fills in what the command line leaves out (and can
hold values with commas, which torchrun splits on). The environment is read here and in `launch/` alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import ipaddress
import math
import os
import signal
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ft_rendezvous.core.blame import BlameRules
from ft_rendezvous.core.sealing import SealRules
from ft_rendezvous.errors import ConfigError

DEFAULT_PORT = 29400

IGNORED_KEYS = frozenset(
    # Of c10d's dynamic rendezvous and of torchrun itself: accepted, so that one word changes in a command.
    {"timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"}
    | {"read_timeout", "store_type", "rank"}
)


def _setting(key: str, default: Any, doc: str) -> Any:
    return field(default=default, metadata={"key": key, "doc": doc})


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What all nodes of a run must agree on."""

    run_id: str
    min_nodes: int
    max_nodes: int
    lease_s: float = _setting("lease_timeout", 5.0, "A node that is not heard of for this long is dead.")
    beat_s: float = _setting("beat_interval", 1.0, "How often a node renews its lease.")
    join_s: float = _setting(
        "join_timeout", 600.0, "How long a cycle waits for enough nodes, and a node for the store, in seconds."
    )
    last_call_s: float = _setting(
        "last_call_timeout", 45.0, "How long a cycle waits for survivors that are alive and stopping workers."
    )
    settle_s: float = _setting("settle_s", 0.0, "How long to let more nodes come once there are enough.")
    store_grace_s: float = _setting(
        "store_grace", 3.0, "How long the store host stays for nodes that lost their lease in the exit barrier."
    )
    max_cycles: int = _setting(
        "max_cycles", 0, "The run's restart budget: so many cycles may end because workers failed; 0 is no limit."
    )
    max_node_failures: int = _setting(
        "max_node_failures", 3, "A node whose workers were the first to fail so often is quarantined; 0: never."
    )
    quarantine_s: float = _setting("quarantine_s", 3600.0, "How long a quarantined node may not come back.")
    crash_loop: int = _setting(
        "crash_loop", 5, "So many cycles in a row that fail at their start on one error end the run; 0: never."
    )
    crash_loop_s: float = _setting("crash_loop_s", 30.0, "What counts as the start of a cycle.")
    drain_grace_s: float = _setting(
        "drain_grace_s", 60.0, "How long a draining node trains on, unless a worker says at_checkpoint() before."
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

    @property
    def seal_rules(self) -> SealRules:
        return SealRules(
            world_size=self.min_nodes,
            max_nodes=self.max_nodes,
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
        named = {_key_of(item): str(getattr(self, item.name)) for item in dataclasses.fields(self)}
        named["nnodes"] = f"{named.pop('min_nodes')}:{named.pop('max_nodes')}"
        del named["run_id"]
        return named

    @property
    def digest(self) -> str:
        text = "\n".join(f"{key}={value}" for key, value in sorted(self.as_dict().items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One node's own."""

    endpoint_host: str
    endpoint_port: int
    local_addr: str | None = None
    infra_rank: int | None = _setting(
        "infra_rank", None, "This node's place in the infrastructure; else FT_INFRA_RANK, SLURM_PROCID or GROUP_RANK."
    )
    domain_id: str | None = _setting("domain", None, "What shares a fast fabric with this node; else FT_DOMAIN_ID.")
    is_host: bool | None = _setting(
        "is_host", None, "Whether this node hosts the store; else whether the endpoint names this machine."
    )
    health_check: str | None = _setting(
        "health_check", None, "A command that must succeed before this node joins, and before it comes back."
    )
    health_check_s: float = _setting("health_check_timeout", 60.0, "How long it may take.")
    checks_gpus: bool = _setting(
        "gpu_check", True, "Whether to run nvidia-resiliency-ext's GPU and NIC checks, where it and a GPU are there."
    )
    verdict_file: str | None = _setting(
        "verdict_file", None, "Where the store host writes how the run ended, as JSON, before anybody hears of it."
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


def log_level(env: Mapping[str, str] | None = None) -> str:
    """How much to log where nobody has configured logging."""
    return (os.environ if env is None else env).get("FT_LOGLEVEL", "INFO").upper()


def caught_signals(env: Mapping[str, str] | None = None) -> list[signal.Signals]:
    """The signals on which torch's agent stops its workers and goes."""
    env = os.environ if env is None else env
    names = env.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")
    return [signal.Signals[name.strip()] for name in names if name.strip() in signal.Signals.__members__]


def format_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of `host[:port]`, `[v6]:port` or a bare IPv6 address."""
    text = text.strip()
    if not text:
        return "localhost", DEFAULT_PORT
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port_text = text, ""
    else:
        host, _, port_text = text.partition(":")
    if not host or (port_text and not (_is_digits(port_text) and 0 < int(port_text) < 65536)):
        raise ConfigError(f"endpoint {text!r} is not host:port, for example --rdzv-endpoint=node1:29400")
    return host, int(port_text) if port_text else DEFAULT_PORT


def parse_settings(
    *,
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    conf: Mapping[str, Any],
    local_addr: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """All settings of a node, checked. Raises ConfigError with what to change."""
    env = os.environ if env is None else env
    host, port = parse_endpoint(endpoint)
    _check_reachable(host, env)
    given = _with_config_file(conf)
    _check_known(given)
    run = RunSettings(run_id=run_id, min_nodes=min_nodes, max_nodes=max_nodes, **_values_for(RunSettings, given))
    from_conf = _values_for(NodeSettings, given)
    node = NodeSettings(
        endpoint_host=host,
        endpoint_port=port,
        local_addr=local_addr,
        infra_rank=from_conf.pop("infra_rank", _infra_rank_from(env)),
        domain_id=from_conf.pop("domain_id", env.get("FT_DOMAIN_ID") or None),
        shares_store=env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1",
        **from_conf,
    )
    return Settings(run=run, node=node)


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
    for owner, scope in ((RunSettings, "run"), (NodeSettings, "node")):
        for item in dataclasses.fields(owner):
            if "key" in item.metadata:
                default = "" if item.default is None else f"`{item.default}`"
                rows.append(f"| `{item.metadata['key']}` | {default} | {scope} | {item.metadata['doc']} |")
    rows.append("| `config` | | node | A TOML file with any of these; the command line wins. |")
    return "\n".join(rows)


# --- parts ------------------------------------------------------------------------------------------


def _key_of(item: dataclasses.Field[Any]) -> str:
    key: str = item.metadata.get("key", item.name)
    return key


def _fields_by_key(owner: type) -> dict[str, dataclasses.Field[Any]]:
    return {item.metadata["key"]: item for item in dataclasses.fields(owner) if "key" in item.metadata}


def _with_config_file(conf: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(conf)
    path = given.pop("config", None)
    if path is None:
        return given
    try:
        with Path(str(path)).open("rb") as file:
            from_file = tomllib.load(file)
    except (OSError, ValueError) as error:  # Not TOML, or not even text.
        raise ConfigError(f"config={path} cannot be read: {error}") from error
    return {**from_file, **given}


def _check_known(given: Mapping[str, Any]) -> None:
    known = {*_fields_by_key(RunSettings), *_fields_by_key(NodeSettings), *IGNORED_KEYS, "config"}
    for key in given:
        if key not in known:
            closest = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
            raise ConfigError(f"unknown --rdzv-conf key {key!r}; the closest known one is {closest[0]!r}")


def _values_for(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    by_key = _fields_by_key(owner)
    return {by_key[key].name: _convert(key, by_key[key], value) for key, value in given.items() if key in by_key}


def _convert(key: str, item: dataclasses.Field[Any], value: Any) -> Any:
    """Text from the command line, or a TOML value, as the field's type."""
    wanted = str(item.type)
    try:
        if wanted.startswith("float"):
            number = float(value)
            if not (math.isfinite(number) and number >= 0):
                raise ValueError("it must be a number of seconds, 0 or more")
            return number
        if wanted.startswith("int"):
            return _to_count(value)
        if wanted.startswith("bool"):
            return _to_bool(value)
        return str(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--rdzv-conf {key}={value} is malformed: {error}") from error


def _to_count(value: Any) -> int:
    text = str(value)
    if not _is_digits(text):
        raise ValueError("it must be an integer, 0 or more")
    return int(text)


def _is_digits(text: str) -> bool:
    """Whether `int` reads it as a plain number; other scripts' digits and superscripts are not meant."""
    return text.isascii() and text.isdecimal()


def _to_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "t", "yes", "y"):
        return True
    if text in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError("it must be true or false")


def _infra_rank_from(env: Mapping[str, str]) -> int | None:
    for name in ("FT_INFRA_RANK", "SLURM_PROCID", "GROUP_RANK"):
        text = env.get(name, "")
        if text:
            if not _is_digits(text):
                raise ConfigError(f"{name}={text} is not a rank: it must be an integer, 0 or more")
            return int(text)
    return None


def _check_reachable(host: str, env: Mapping[str, str]) -> None:
    nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if is_loopback(host) and _is_digits(nodes) and int(nodes) > 1:
        raise ConfigError(
            f"the endpoint {host} is a loopback address, but SLURM runs this job on {nodes} machines: pass "
            "--rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1):29400"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
