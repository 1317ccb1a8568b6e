"""The one module that reaches into torch: it wraps `SimpleElasticAgent.run` for our handlers only.

What no public interface gives:

- the agent's role and worker count, which let a seat carry the worker ranks;
- the workers' pids, and the moment before the agent stops them: who failed first, and a goodbye before it spends
  up to 30 s on stopping;
- a result for a node that left gracefully. Stock torch swallows `RendezvousGracefulExitError`, returns None
  and then fails on it (pytorch #194710). Once torch returns a result there, this part does nothing;
- the run's verdict after the exit barrier, which swallows every error: a node whose workers ended well in a run
  that failed must not exit 0;
- torch's own reaction to signals, also for an agent that has not started any workers yet, and to the first of two that
  come at once: SLURM signals the step and then the job, and the second would end an agent that is about to say goodbye.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

from ft_rendezvous.agent.agent_store import barrier_keys
from ft_rendezvous.agent.worker_group import Started
from ft_rendezvous.config.load import caught_signals
from ft_rendezvous.errors import ConfigError

if TYPE_CHECKING:
    from ft_rendezvous.agent.handler import FtRendezvousHandler

_MARK = "_ft_rendezvous_wraps"
AT_ONCE_S = 3.0


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
        last_failure = _tell_of_workers(agent, handler)
        former, raises = _catch_signals(), multiprocessing_api._terminate_process_handler
        try:
            result: RunResult | None = original(agent, *args, **kwargs)
        except RendezvousClosedError:
            # The run has failed while this node wanted to try again: what its user needs to see is why it had to.
            failed = last_failure()
            if failed is None:
                raise
            return failed
        except SignalException:
            # Torch does not call shutdown() after a signal; whoever hosts the store stays until it is not needed.
            handler.shutdown()
            raise
        finally:
            handler.detach()
            multiprocessing_api._terminate_process_handler = getattr(raises, _MARK, raises)
            for signum, before in former.items():
                signal.signal(signum, before)
        if result is None:
            return RunResult(state=WorkerState.SUCCEEDED)
        if result.state is WorkerState.SUCCEEDED:
            handler.check_end()
        elif result.state is not WorkerState.FAILED:
            raise RendezvousError(f"the worker group is {result.state.name} and cannot be restarted on this node")
        return result

    setattr(run, _MARK, original)
    SimpleElasticAgent.run = run  # type: ignore[method-assign]


def missing_parts() -> list[str]:
    """What this package reaches for in torch and does not find; empty with a torch that it knows."""
    wanted: list[tuple[Any, str]] = [
        (SimpleElasticAgent, "run"),
        *((SimpleElasticAgent, f"_{name}") for name in ("start_workers", "shutdown", "restart_workers")),
        (SimpleElasticAgent, "_monitor_workers"),
        (multiprocessing_api, "_terminate_process_handler"),
    ]
    missing = [f"{owner.__name__}.{name}" for owner, name in wanted if not hasattr(owner, name)]
    try:
        barrier_keys()
    except ConfigError:
        missing.append("the names of the exit barrier")
    return missing


def _tell_of_workers(agent: SimpleElasticAgent, handler: FtRendezvousHandler) -> Callable[[], RunResult | None]:
    """Let the handler know when workers start and before they are stopped, and whether they will be restarted.

    Returns a way to ask how the last workers failed, if they did.
    """
    start, shut_down, restart, monitor = (
        agent._start_workers,
        agent._shutdown,
        agent._restart_workers,
        agent._monitor_workers,
    )
    is_restarting = False
    last_failure: RunResult | None = None

    def _start_workers(group: WorkerGroup) -> dict[int, Any]:
        nonlocal last_failure
        last_failure = None
        pids = start(group)
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        context = getattr(agent, "_pcontext", None)
        if handler.workers is not None:
            files = (getattr(context, name, {}) for name in ("error_files", "stderrs"))
            handler.workers.started(Started(pids, ranks, *files))
        return pids

    def _shutdown(*args: Any, **kwargs: Any) -> None:
        failure = handler.workers.stop_watch() if handler.workers is not None else None
        if not is_restarting:
            handler.say_goodbye_early(sys.exc_info()[1], failure)
        shut_down(*args, **kwargs)

    def _restart_workers(group: WorkerGroup) -> None:
        nonlocal is_restarting
        is_restarting = True
        try:
            restart(group)
        finally:
            is_restarting = False

    def _monitor_workers(group: WorkerGroup) -> RunResult:
        nonlocal last_failure
        result = monitor(group)
        if result.state is WorkerState.FAILED and handler.workers is not None:
            handler.workers.confirm({rank: failure.exitcode for rank, failure in result.failures.items()})
        if result.state is WorkerState.FAILED and handler.workers is not None and handler.workers.is_excused:
            # They failed of the cycle's end, which their agent is about to see: that costs it no restart.
            return RunResult(state=WorkerState.HEALTHY)
        if result.state is WorkerState.FAILED:
            last_failure = result
        return result

    for method in (_start_workers, _shutdown, _restart_workers, _monitor_workers):
        setattr(agent, method.__name__, method)
    return lambda: last_failure


def _first_of_several(react: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    """React to a signal, and not to those that follow it at once. Torch installs what bears its own handler's name."""
    reacted_at = float("-inf")

    def react_once(signum: int, frame: Any) -> None:
        nonlocal reacted_at
        now = time.monotonic()
        if now - reacted_at > AT_ONCE_S:
            reacted_at = now
            react(signum, frame)

    setattr(react_once, _MARK, react)
    return react_once


def _catch_signals() -> dict[signal.Signals, Any]:
    """Torch catches signals once it has started workers; an agent that waits for its place must say goodbye too.

    Returns the former handlers, where Python let us change them.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    handler = _first_of_several(multiprocessing_api._terminate_process_handler)
    multiprocessing_api._terminate_process_handler = handler  # type: ignore[assignment]
    return {signum: signal.signal(signum, handler) for signum in caught_signals()}
