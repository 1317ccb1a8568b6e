"""Timeouts of torchft that fit a lease: those of the lighthouse, and those of the workers' managers.

Pure functions. The environment comes in as an argument, and warnings go out as text.

The agents of a run know within a lease which groups are lost, and release their workers. So torchft's own timeouts are
the second line: they must not fire while a healthy group is slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT = "TORCHFT_TIMEOUT_SEC"
QUORUM_TIMEOUT = "TORCHFT_QUORUM_TIMEOUT_SEC"
CONNECT_TIMEOUT = "TORCHFT_CONNECT_TIMEOUT_SEC"
QUORUM_RETRIES = "TORCHFT_QUORUM_RETRIES"

RETRY_PAUSE_S = 1.0
"""How long a manager pauses before it asks a lost lighthouse again: its quorum timeout / (retries + 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LighthouseRules:
    """How the lighthouse forms a quorum."""

    min_replicas: int
    """Fewer groups form no quorum."""
    heartbeat_timeout_s: float
    """A group whose managers are silent for this long does not count. Survivors of a killed group wait for this."""
    join_timeout_s: float
    """How long a quorum waits for a group that is alive and has not asked for it: for the slowest healthy step."""
    tick_s: float
    silence_timeout_s: float
    """The lighthouse hangs up on a manager that is silent for this long: see `lighthouse_main`."""

    def __post_init__(self) -> None:
        assert self.min_replicas > 0, "a quorum needs a group"
        assert self.heartbeat_timeout_s < self.silence_timeout_s, "a silent manager is ignored before it is cut off"


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """Variables for the environment of workers, without those that the user has set."""

    values: Mapping[str, str]
    warnings: tuple[str, ...]
    """What contradicts the lease, or each other, in what the user has set."""


def derive_rules(lease_s: float, min_replicas: int) -> LighthouseRules:
    """The rules of a lighthouse for a run with this lease.

    Managers send a heartbeat every 0.1 s. With ten of them in a timeout, a busy machine is not taken for a dead one.
    """
    heartbeat_timeout_s = max(1.0, lease_s / 5)
    return LighthouseRules(
        min_replicas=min_replicas,
        heartbeat_timeout_s=heartbeat_timeout_s,
        join_timeout_s=60.0,
        tick_s=0.1,
        # Before the lease ends: afterwards the group is told as lost, and must not come back under its old name.
        silence_timeout_s=max(2 * heartbeat_timeout_s, 0.6 * lease_s),
    )


def derive_timeouts(lease_s: float, environ: Mapping[str, str]) -> WorkerTimeouts:
    """What workers need beside what the environment has, and what is wrong with that. Torchft parses with `int()`."""
    timeout_s = max(60, math.ceil(6 * lease_s))
    quorum_timeout_s = max(300, 2 * timeout_s)
    derived = {
        TIMEOUT: timeout_s,
        QUORUM_TIMEOUT: quorum_timeout_s,
        CONNECT_TIMEOUT: max(10, math.ceil(2 * lease_s)),
        QUORUM_RETRIES: math.ceil(quorum_timeout_s / RETRY_PAUSE_S) - 1,
    }
    values = {name: str(value) for name, value in derived.items() if name not in environ}
    given: dict[str, int] = {}
    warnings = []
    for name in derived:
        text = environ.get(name)
        if text is None:
            continue
        try:
            given[name] = int(text)
        except ValueError:
            warnings.append(f"{name}={text} is not a whole number: torchft fails to start with it")
    if QUORUM_TIMEOUT in given and QUORUM_RETRIES in values:
        # With the user's timeout, the derived number of retries would give another pause.
        values[QUORUM_RETRIES] = str(max(1, math.ceil(given[QUORUM_TIMEOUT] / RETRY_PAUSE_S) - 1))
    used = derived | given
    for name in (TIMEOUT, QUORUM_TIMEOUT):
        if name in given and given[name] <= lease_s:
            text = f"{name}={given[name]} is not more than the lease of {lease_s:g} s"
            warnings.append(f"{text}: workers give up before it is known which group is lost")
    if (TIMEOUT in given or QUORUM_TIMEOUT in given) and used[QUORUM_TIMEOUT] < used[TIMEOUT]:
        text = f"{QUORUM_TIMEOUT}={used[QUORUM_TIMEOUT]} is less than {TIMEOUT}={used[TIMEOUT]}"
        warnings.append(f"{text}: a group that waits for a slow one gives up first")
    if given.get(QUORUM_RETRIES, 1) < 1:
        warnings.append(f"{QUORUM_RETRIES}={given[QUORUM_RETRIES]}: every worker fails if the lighthouse restarts")
    return WorkerTimeouts(values, tuple(warnings))
