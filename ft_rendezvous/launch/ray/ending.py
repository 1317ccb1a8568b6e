"""How a run on Ray has ended: its verdict, what the driver says of it, and the last lines of what failed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.ray.cluster import try_call
from ft_rendezvous.launch.ray.machine import NodeState, RayEnd, RayNode, RayOutcome
from ft_rendezvous.launch.ray.progress import say
from ft_rendezvous.launch.run_end import FAILED, RunEnd

TAIL_TIMEOUT_S = 5.0
TAIL_LINES = 30


@dataclass(frozen=True, kw_only=True)
class RayRunEnding:
    """What is known of a run that has ended."""

    name: str
    has_own_store: bool
    log_dir: Path
    nodes: Sequence[RayNode]
    run_actor: Any
    actors: Mapping[int, Any]
    """The newest actor of each node."""

    def tell(self, end: RayEnd, signals: Sequence[int]) -> RunEnd:
        """Read the verdict and say how the run has ended. Raises ConfigError if a machine could not start it."""
        if end.outcome is RayOutcome.REFUSED:
            raise ConfigError(end.reason)
        if end.outcome is RayOutcome.NO_NODE_LEFT:
            say(f"no node is left that could be started: {end.reason}")
        elif end.reason:
            say(end.reason)
        report = self._read_verdict()
        codes = [node.code if node.code is not None else -1 for node in self.nodes if node.start]
        if report is None and self.has_own_store:
            codes.append(FAILED)  # Without a verdict it has not succeeded, whatever its nodes say.
        say(f"run {self.name} {self._describe(report)}")
        if report is None or report.verdict is VerdictKind.FAILED:
            self._show_failure(report)
        return RunEnd(report, codes, tuple(signals))

    def _read_verdict(self) -> VerdictReport | None:
        """The store writes it before it tells the nodes, so it is there when they have ended."""
        text = try_call(self.run_actor.verdict)
        return msgspec.json.decode(text, type=VerdictReport) if text else None

    def _describe(self, report: VerdictReport | None) -> str:
        if report is None:
            return "ended without a verdict" if self.has_own_store else "has ended"
        if report.verdict is VerdictKind.SUCCEEDED:
            return f"succeeded in cycle {report.cycle}"
        return f"{report.verdict} in cycle {report.cycle}: {report.reason}; logs {self.log_dir}"

    def _show_failure(self, report: VerdictReport | None) -> None:
        """The last lines of the node that failed first, and where all of them are."""
        failed = [node for node in self.nodes if node.state is NodeState.FAILED]
        first = None if report is None else report.first_failure
        if first is not None:
            failed.sort(key=lambda node: f"infra rank {node.number} " not in f"{first.node} ")
        for node in failed[:1]:
            words = try_call(self.actors[node.number].last_words, TAIL_LINES, timeout_s=TAIL_TIMEOUT_S)
            if words is not None:
                path, lines = words
                say(f"the last lines of {path} on {node.where or 'its machine'}:")
                print("\n".join(f"  {line}" for line in lines), file=sys.stderr, flush=True)
