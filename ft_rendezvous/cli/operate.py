"""`ftr drain`, `ftr restart`, `ftr close`: send a request to a run, and print the answer."""

from __future__ import annotations

from ft_rendezvous.cli.exit_codes import FAILED
from ft_rendezvous.core.model import RequestKind
from ft_rendezvous.errors import ConfigError, StoreUnavailable


def operate(endpoint: str, kind: RequestKind, target: str, reason: str) -> int:
    """Send a request, wait for the coordinator's answer, print it. Returns the exit code."""
    # It imports torch, which takes seconds. A bad option is reported before.
    from ft_rendezvous.node.operator import Operator  # noqa: PLC0415

    try:
        operator = Operator(endpoint)
        answer = operator.ask(kind, target, reason)
    except StoreUnavailable as error:
        raise ConfigError(f"{error}: is its host alive?") from error
    print(f"run {operator.run_id!r}: {answer.text}")
    return 0 if answer.is_granted else FAILED
