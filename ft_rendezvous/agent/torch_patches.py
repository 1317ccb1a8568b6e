"""Wraps `SimpleElasticAgent.run` and four methods of the agent, for our handlers only.

This module and `agent_store` are the only ones that use private names of torch. `torch_parts` lists these names. The
wrappers give what no public interface gives:

- the agent's role and worker count, which let a seat carry the worker ranks;
- the workers' pids, and the moment before the agent stops them. So this node knows which worker failed first, and says
  goodbye before it spends up to 30 s on stopping its workers;
- a result for a node that left gracefully. Stock torch swallows `RendezvousGracefulExitError`, returns None
  and then fails on it (pytorch #194710). Once torch returns a result there, this part does nothing;
- the run's verdict after the exit barrier, which swallows every error: a node whose workers ended well in a run
  that failed must not exit 0;
- a nursery for warm workers, and their command, where PYTHON_EXEC asks for them;
- torch's reaction to signals for an agent that has not started workers yet, and only to the first of several signals
  that come at once: the second one would end an agent that is about to say goodbye.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerState
from torch.distributed.elastic.agent.server.api import WorkerGroup as TorchWorkerGroup
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

from ft_rendezvous.agent.signals import first_of_burst, replace_handlers, restore_handlers
from ft_rendezvous.agent.torch_parts import TESTED_TORCH
from ft_rendezvous.agent.worker_group import StartedWorkers
from ft_rendezvous.config.load import caught_signals
from ft_rendezvous.protocol.worker_policy import GroupState
from ft_rendezvous.warm.called_with import CalledWith
from ft_rendezvous.warm.nursery import find_command

if TYPE_CHECKING:
    from ft_rendezvous.agent.handler import FtRendezvousHandler

log = logging.getLogger("ft_rendezvous")

_ORIGINAL = "_ft_rendezvous_original"
"""The attribute of our wrapper that holds torch's own method."""


def install(handler_type: type[FtRendezvousHandler]) -> None:
    """Wrap the agent's `run`, once."""
    original = SimpleElasticAgent.run
    if hasattr(original, _ORIGINAL):
        return

    @functools.wraps(original)
    def run(agent: SimpleElasticAgent, *args: Any, **kwargs: Any) -> RunResult:
        spec = agent.get_worker_group().spec
        handler = spec.rdzv_handler
        if not isinstance(handler, handler_type):
            untouched: RunResult = original(agent, *args, **kwargs)
            return untouched
        warm_command = find_command(spec.entrypoint, spec.args)
        if warm_command is not None:
            spec.entrypoint, spec.args = warm_command
        handler.attach(spec.role, spec.local_world_size, is_warm=warm_command is not None)
        if _uses_forkserver(agent):
            # It has the modules of `set_forkserver_preload`. Started now, it is warm when this node gets its place.
            forkserver.ensure_running()
        wrappers = _AgentWrappers(agent, handler)
        with _signals_caught():
            try:
                result: RunResult | None = original(agent, *args, **kwargs)
            except RendezvousClosedError:
                # The run failed while this node wanted to try again. The user needs to see why it had to.
                if wrappers.failed is None:
                    raise
                return wrappers.failed
            except SignalException:
                # Torch does not call shutdown() after a signal. The host of the store stays while other nodes need it.
                handler.shutdown()
                raise
            finally:
                handler.detach()
        if result is None:
            return RunResult(state=WorkerState.SUCCEEDED)
        if result.state is WorkerState.SUCCEEDED:
            handler.check_end()
        elif result.state is not WorkerState.FAILED:
            # Torch's launcher takes every state but FAILED for a success.
            raise RendezvousError(f"the worker group is {result.state.name} and cannot be restarted on this node")
        return result

    setattr(run, _ORIGINAL, original)
    SimpleElasticAgent.run = run  # type: ignore[method-assign]


def _uses_forkserver(agent: SimpleElasticAgent) -> bool:
    is_function = not isinstance(agent.get_worker_group().spec.entrypoint, str)
    return is_function and getattr(agent, "_start_method", "") == "forkserver"


class _AgentWrappers:
    """Calls the handler when the agent has started its workers, when they fail, and before it stops them for good."""

    def __init__(self, agent: SimpleElasticAgent, handler: FtRendezvousHandler) -> None:
        self._agent = agent
        self._handler = handler
        self._start = agent._start_workers
        self._shut_down = agent._shutdown
        self._restart = agent._restart_workers
        self._monitor = agent._monitor_workers
        self._function: Any = agent.get_worker_group().spec.entrypoint if _uses_forkserver(agent) else None
        """What a forkserver's workers call. They do not inherit what this agent exports."""
        self._is_restarting = False
        self._reason_to_give_up = ""
        self.failed: RunResult | None = None
        """How the last workers failed, if they did."""
        for wrapper in (self._start_workers, self._shutdown, self._restart_workers, self._monitor_workers):
            setattr(agent, wrapper.__name__, wrapper)

    def _start_workers(self, group: TorchWorkerGroup) -> dict[int, Any]:
        self.failed, self._reason_to_give_up = None, ""
        self._handler.agent_calls.note("_start_workers")
        if self._function is not None:
            group.spec.entrypoint = CalledWith(self._function, dict(self._handler.exported))
        pids = self._start(group)
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        # An agent of another class than torch's LocalElasticAgent may have no such context.
        context = getattr(self._agent, "_pcontext", None)
        if self._handler.workers is not None:
            files = (getattr(context, name, {}) for name in ("error_files", "stderrs", "stdouts"))
            self._handler.workers.started(StartedWorkers(pids, ranks, *files))
        return pids

    def _monitor_workers(self, group: TorchWorkerGroup) -> RunResult:
        self._handler.agent_calls.note("_monitor_workers")
        result = self._monitor(group)
        workers = self._handler.workers
        if workers is None or result.state.name not in GroupState.__members__:
            return result
        exit_codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        sight = workers.look(GroupState[result.state.name], exit_codes)
        self._reason_to_give_up = sight.reason_to_give_up
        if sight.state is GroupState.FAILED:
            self.failed = result
        # The agent is about to see that the cycle of excused workers is over. So their failure costs it no restart.
        return result if sight.state == result.state.name else RunResult(state=WorkerState[sight.state.name])

    def _restart_workers(self, group: TorchWorkerGroup) -> None:
        self._handler.agent_calls.note("_restart_workers")
        self._is_restarting = True
        try:
            self._restart(group)
        finally:
            self._is_restarting = False

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        if self._handler.workers is not None:
            self._handler.workers.stop_watch()
        if not self._is_restarting:
            # Torch calls this again at the end of every run: one goodbye is enough.
            reason, self._reason_to_give_up = self._reason_to_give_up, ""
            self._handler.say_goodbye_early(sys.exc_info()[1], reason)
        self._shut_down(*args, **kwargs)


class AgentCalls:
    """Which of our wrappers torch's agent has called.

    A torch that has a method, but does not call it any more, would pass the check of its parts. Then this node would
    work less well than it should, without a word. So the handler says which calls must have come before its own.
    """

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._has_warned = False

    def note(self, name: str) -> None:
        self._called.add(name)

    def expect(self, *names: str) -> None:
        """Warn, once, if the agent has not called one of these."""
        bypassed = [name for name in names if name not in self._called]
        if bypassed and not self._has_warned:
            self._has_warned = True
            log.warning(
                "torch %s does not call %s of its agent: failures and drains of this node may be handled late or not "
                "at all; use torch %s, or a newer ft-rendezvous",
                torch.__version__,
                ", ".join(bypassed),
                TESTED_TORCH,
            )


@contextmanager
def _signals_caught() -> Iterator[None]:
    """Let an agent react to signals from the start, and to the first of several at once.

    Torch itself catches signals only when it has started workers. An agent that waits for its place must say goodbye,
    too. Torch then installs the function that has the name of its own handler: that is ours.
    """
    torchs_handler = multiprocessing_api._terminate_process_handler
    handler = first_of_burst(torchs_handler)
    former = replace_handlers(caught_signals(), handler)
    if former:
        multiprocessing_api._terminate_process_handler = handler  # type: ignore[assignment]
    try:
        yield
    finally:
        multiprocessing_api._terminate_process_handler = torchs_handler
        restore_handlers(former)
