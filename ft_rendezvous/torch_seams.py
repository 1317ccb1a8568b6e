"""The one module that reaches into torch: it wraps `SimpleElasticAgent.run` for our handlers only.

What no public interface gives:

- the agent's role and worker count, which let a seat carry the worker ranks;
- a result for a node that left gracefully. Stock torch swallows `RendezvousGracefulExitError`, returns None
  and then fails on it (pytorch #194710). Once torch returns a result there, this part does nothing;
- the run's verdict after the exit barrier, which swallows every error: a node whose workers ended well in a run
  that failed must not exit 0;
- a word before the agent goes because of a signal.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError

from ft_rendezvous.errors import ConfigError

if TYPE_CHECKING:
    from ft_rendezvous.handler import FtRendezvousHandler

_MARK = "_ft_rendezvous_wraps"


def install(handler_type: type[FtRendezvousHandler]) -> None:
    """Wrap the agent's `run` once. Raises ConfigError if this torch has no such method."""
    original = getattr(SimpleElasticAgent, "run", None)
    if original is None:
        raise ConfigError("this torch has no SimpleElasticAgent.run: install torch 2.8 to 2.13")
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def run(agent: SimpleElasticAgent, *args: Any, **kwargs: Any) -> RunResult:
        spec = agent.get_worker_group().spec
        handler = spec.rdzv_handler
        if not isinstance(handler, handler_type):
            untouched: RunResult = original(agent, *args, **kwargs)
            return untouched
        handler.attach(spec.role, spec.local_world_size)
        try:
            result: RunResult | None = original(agent, *args, **kwargs)
        except SignalException:
            # Torch does not call shutdown() after a signal; the others should not have to wait for our lease.
            handler.shutdown()
            raise
        if result is None:
            return RunResult(state=WorkerState.SUCCEEDED)
        if result.state is WorkerState.SUCCEEDED:
            handler.check_end()
        elif result.state is not WorkerState.FAILED:
            raise RendezvousError(f"the worker group is {result.state.name} and cannot be restarted on this node")
        return result

    setattr(run, _MARK, original)
    SimpleElasticAgent.run = run  # type: ignore[method-assign]
