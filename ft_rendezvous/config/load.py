"""Reads what settings depend on: the environment, the TOML file, and the sources that say where a node is.

The only module of this package that reads the environment or runs a command. `settings` parses and checks what was
read.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from ft_rendezvous.config import topology
from ft_rendezvous.config.schema import is_digits, with_config_file
from ft_rendezvous.config.settings import RunSettings, Settings, parse_settings
from ft_rendezvous.errors import ConfigError


def log_level(env: Mapping[str, str] | None = None) -> str:
    """The log level to use if the program has not configured logging."""
    return (os.environ if env is None else env).get("FT_LOGLEVEL", "INFO").upper()


def torchft_variables(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the user has set for torchft."""
    return {name: value for name, value in (os.environ if env is None else env).items() if name.startswith("TORCHFT_")}


def caught_signals(env: Mapping[str, str] | None = None) -> list[signal.Signals]:
    """The signals at which torch's agent stops its workers and leaves."""
    env = os.environ if env is None else env
    names = env.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(",")
    return [signal.Signals[name.strip()] for name in names if name.strip() in signal.Signals.__members__]


def load_settings(
    *,
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    conf: Mapping[str, Any],
    local_addr: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a run and its host, checked. Raises ConfigError, which says what to change."""
    return parse_settings(
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        conf=with_config_file(conf),
        env=os.environ if env is None else env,
        local_addr=local_addr,
    )


def locate_node(settings: Settings, env: Mapping[str, str] | None = None) -> Settings:
    """The same settings with this node's infra rank, domain, unit and index. May run a command to find them.

    A value that the user gave wins. Raises ConfigError if a name that the run needs is missing.
    """
    env = os.environ if env is None else env
    infra_rank = settings.node.infra_rank if settings.node.infra_rank is not None else _infra_rank_from(env)
    source_input = topology.SourceInput(env.get("SLURMD_NODENAME") or socket.gethostname(), env)
    domain_id = _find_domain(settings, source_input)
    unit_id = _find_unit(settings, source_input)
    _check_location(settings.run, domain_id, unit_id, source_input.hostname)
    node = dataclasses.replace(
        settings.node,
        infra_rank=infra_rank,
        domain_id=domain_id,
        unit_id=unit_id,
        job_index=_number_from(env, "JOB_COMPLETION_INDEX", "an index"),
        hostname=socket.gethostname(),
        is_pod="KUBERNETES_SERVICE_HOST" in env,
    )
    return dataclasses.replace(settings, node=node)


def _find_domain(settings: Settings, source_input: topology.SourceInput) -> str | None:
    from_env = source_input.env.get("FT_DOMAIN_ID", "")
    if settings.node.domain_id is not None:
        return topology.check_name("domain", settings.node.domain_id, source_input)
    if from_env.strip():
        return topology.check_name("FT_DOMAIN_ID", from_env, source_input)
    if settings.run.domain_from is not None:
        return topology.find_name("domain_from", settings.run.domain_from, source_input)
    return None


def _find_unit(settings: Settings, source_input: topology.SourceInput) -> str | None:
    if settings.node.unit_id is not None:
        return topology.check_name("unit", settings.node.unit_id, source_input)
    if settings.run.unit_from is not None:
        return topology.find_name("unit_from", settings.run.unit_from, source_input)
    return None


def _check_location(run: RunSettings, domain_id: str | None, unit_id: str | None, hostname: str) -> None:
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
        rank = _number_from(env, name, "a rank")
        if rank is not None:
            base = env.get("FT_INFRA_RANK_BASE", "") if name == "SLURM_PROCID" else ""
            return rank + (int(base) if is_digits(base) else 0)
    return None


def _number_from(env: Mapping[str, str], name: str, what: str) -> int | None:
    """The number in a variable; None if it is absent or empty."""
    text = env.get(name, "")
    if text and not is_digits(text):
        raise ConfigError(f"{name}={text} is not {what}: it must be an integer, 0 or more")
    return int(text) if text else None


def own_environment() -> dict[str, str]:
    """What torch's agent gives its workers, but for its own variables: not what a C library has set beside Python."""
    return dict(os.environ)
