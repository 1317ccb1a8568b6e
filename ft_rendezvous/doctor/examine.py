"""One examination. The first node leads it: it collects reports, looks at the endpoint once, lets the other nodes try
to reach it, and judges. A node without others leads itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.settings import differing_keys
from ft_rendezvous.doctor.collector import Collector, report_to_collector
from ft_rendezvous.doctor.endpoint import new_token
from ft_rendezvous.doctor.facts import (
    Attempt,
    Attempts,
    Clients,
    ClockRead,
    Controller,
    EndpointFacts,
    EndpointSeen,
    EndpointState,
    Hello,
    LookAtEndpoint,
    NameClients,
    NodeAnswer,
    NodeFacts,
    NodeRequest,
    Reach,
    ReachLifelines,
    ReadClock,
    Step,
)
from ft_rendezvous.doctor.findings import Examination, Finding, Status, worst
from ft_rendezvous.doctor.gather import DoctorOptions, gather_facts, read_settings
from ft_rendezvous.doctor.judging import judge
from ft_rendezvous.doctor.node_actions import NodeActions
from ft_rendezvous.doctor.slurm_step import ask_controller
from ft_rendezvous.store import net

ANSWER_TIMEOUT_S = 30.0
"""How long a node may take to answer a request: it may try eight addresses without an answer, or make lookups."""

PAUSE_THRESHOLD_S = 0.5
"""A store that takes longer to answer pauses for every client. No further node is sent there."""

R = TypeVar("R")
T = TypeVar("T", bound=NodeAnswer)
TellFindings = Callable[[Examination, Sequence[Finding]], None]


class Examined(Protocol):
    """A node that answers requests: this one, or one that has reported."""

    facts: NodeFacts

    async def ask(self, request: NodeRequest, timeout_s: float) -> NodeAnswer | None: ...


class OwnNode:
    """The leading node itself."""

    def __init__(self, facts: NodeFacts, node: NodeActions) -> None:
        self.facts = facts
        self._node = node

    async def ask(self, request: NodeRequest, timeout_s: float) -> NodeAnswer | None:
        del timeout_s  # Every action of a node has its own time limit.
        return await _in_thread(lambda: self._node.do(request))


def findings_exit_code(findings: Sequence[Finding]) -> int:
    return 1 if worst(findings) is Status.FAIL else 0


def examine_as_follower(options: DoctorOptions, step: Step, env: Mapping[str, str]) -> int:
    """Report to the first node, answer its requests, and return the exit code that it sends. Raises NoCollector."""
    facts = gather_facts(options, step, env)
    node = NodeActions(options.host, options.port)
    # The names that SLURM uses may not resolve. srun and the endpoint are most often on the first node.
    hosts = list(dict.fromkeys(filter(None, [*step.hosts[:1], step.launched_from, options.host])))
    try:
        return report_to_collector(facts, step, node, hosts=hosts, taken=options.port, timeout_s=options.timeout_s)
    finally:
        node.close()


def examine_as_leader(options: DoctorOptions, step: Step | None, env: Mapping[str, str], tell: TellFindings) -> int:
    """Examine this node and all that report to it, tell the findings, and return the exit code of all nodes."""
    return asyncio.run(_examine_as_leader(options, step, env, tell))


async def _examine_as_leader(
    options: DoctorOptions, step: Step | None, env: Mapping[str, str], tell: TellFindings
) -> int:
    deadline = time.monotonic() + options.timeout_s
    collector = None if step is None or step.tasks == 1 else Collector(step)
    is_open = collector is not None and await collector.open(options.port)
    node = NodeActions(options.host, options.port)
    try:
        mine = _in_thread(lambda: gather_facts(options, step, env))
        site = _in_thread(lambda: None if step is None else ask_controller(step, env))
        facts, controller = await asyncio.gather(mine, site)
        if collector is not None and is_open:
            await collector.wait(deadline)
            collector.close()
        reporting = {} if collector is None else dict(sorted(collector.reporting.items()))
        all_nodes: list[Examined] = [OwnNode(facts, node), *reporting.values()]
        other_versions = [] if collector is None else list(collector.other_versions.values())
        seen = await _examine(
            options=options,
            step=step,
            env=env,
            all_nodes=all_nodes,
            other_versions=other_versions,
            controller=controller,
        )
    finally:
        node.close()
    findings = judge(seen)
    # Before any node exits: with --kill-on-bad-exit, srun ends all nodes when the first one fails.
    tell(seen, findings)
    exit_code = findings_exit_code(findings)
    await asyncio.gather(*(node.dismiss(exit_code) for node in reporting.values()))
    return exit_code


async def _in_thread(call: Callable[[], R]) -> R:
    """Run a call in a thread of its own. At the end of the process Python waits for asyncio's threads, not for this."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
            raise
        loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return await done


async def _examine(
    *,
    options: DoctorOptions,
    step: Step | None,
    env: Mapping[str, str],
    all_nodes: Sequence[Examined],
    other_versions: Sequence[Hello],
    controller: Controller | None,
) -> Examination:
    lost: set[int] = set()
    token = new_token()
    settings, _ = read_settings(options, step, env, is_node=False)
    has_lifelines = settings is not None and settings.run.has_lifelines
    looker = next((each for each in all_nodes if each.facts.is_host), all_nodes[0])
    look = LookAtEndpoint(
        token=token,
        is_holder=looker.facts.is_host,
        lifeline_port=settings.node.lifeline_port if settings is not None and has_lifelines else None,
    )
    answer = await _ask(looker, look, EndpointSeen, lost)
    endpoint = (
        EndpointFacts(state=EndpointState.NO_ANSWER, detail="the node that looked is gone")
        if answer is None
        else answer.endpoint
    )
    attempts = await _try_endpoint(endpoint, token, all_nodes, lost)
    lifeline_attempts = await _try_lifelines(endpoint, token, all_nodes, lost)
    clients = await _ask(looker, NameClients(), Clients, lost) if endpoint.state is EndpointState.HELD else None
    offsets = await _compare_clocks(all_nodes[1:], lost)
    run = endpoint.run
    is_same_run = (
        run is not None and settings is not None and run.run_id == options.run_id and options.sizes is not None
    )
    return Examination(
        endpoint_name=options.endpoint,
        port=options.port,
        nodes=[each.facts for each in all_nodes],
        expected=1 if step is None else step.tasks,
        waited_s=options.timeout_s,
        endpoint=endpoint,
        looked=looker.facts.task,
        attempts=attempts,
        lifeline_attempts=lifeline_attempts,
        clients=clients,
        offsets_s=offsets,
        other_versions=other_versions,
        lost=sorted(lost),
        controller=controller,
        run_id=options.run_id,
        run_differs=differing_keys(settings.run.as_dict(), run.settings) if is_same_run and settings and run else (),
        remarks=() if settings is None else tuple(remark_on(settings.run)),
        rules=None if settings is None else settings.run.placement_rules,
        are_sizes_given=options.sizes is not None,
        lease_s=5.0 if settings is None else settings.run.lease_s,
        files_wanted=0 if settings is None else net.files_wanted(settings.run.max_nodes),
        lifeline_files_wanted=net.lifeline_files_wanted(settings.run.max_nodes) if settings and has_lifelines else 0,
        connections_per_node=net.CONNECTIONS_PER_NODE,
    )


async def _ask(whom: Examined, request: NodeRequest, kind: type[T], lost: set[int]) -> T | None:
    answer = await whom.ask(request, ANSWER_TIMEOUT_S)
    if isinstance(answer, kind):
        return answer
    lost.add(whom.facts.task)
    return None


async def _try_endpoint(
    endpoint: EndpointFacts, token: str, all_nodes: Sequence[Examined], lost: set[int]
) -> dict[int, Sequence[Attempt]]:
    """Let every node try to reach the endpoint, where that cannot disturb a run."""
    if endpoint.state is EndpointState.HELD:
        return await _let_all_try(Reach(token=token), all_nodes, lost)
    tried: dict[int, Sequence[Attempt]] = {}
    run = endpoint.run
    if run is None or run.is_sealed or run.verdict or run.cycle_id > 1:
        return tried
    # No node trains there yet. The nodes go one after the other, and stop when the store is seen to pause.
    for each in all_nodes:
        answer = await _ask(each, Reach(), Attempts, lost)
        if answer is not None:
            tried[each.facts.task] = answer.attempts
            if any(attempt.seconds > PAUSE_THRESHOLD_S for attempt in answer.attempts):
                break
    return tried


async def _try_lifelines(
    endpoint: EndpointFacts, token: str, all_nodes: Sequence[Examined], lost: set[int]
) -> dict[int, Sequence[Attempt]]:
    """Let every node try to reach the port of the lifelines, if the store host listens there."""
    lifelines = endpoint.lifelines
    if lifelines is None or lifelines.error:
        return {}
    request = ReachLifelines(port=lifelines.port, token=token if endpoint.state is EndpointState.HELD else "")
    return await _let_all_try(request, [each for each in all_nodes if each.facts.task not in lost], lost)


async def _let_all_try(
    request: Reach | ReachLifelines, nodes: Sequence[Examined], lost: set[int]
) -> dict[int, Sequence[Attempt]]:
    answers = await asyncio.gather(*(_ask(each, request, Attempts, lost) for each in nodes))
    pairs = zip(nodes, answers, strict=True)
    return {each.facts.task: answer.attempts for each, answer in pairs if answer is not None}


async def _compare_clocks(others: Sequence[Examined], lost: set[int]) -> dict[int, tuple[float, float]]:
    """The offset of every clock from ours, and how uncertain it is: the clock was read between request and answer."""

    async def compare(each: Examined) -> tuple[float, float] | None:
        before = time.time()
        answer = await _ask(each, ReadClock(), ClockRead, lost)
        after = time.time()
        return None if answer is None else (answer.at - (before + after) / 2, (after - before) / 2)

    offsets: dict[int, tuple[float, float]] = {}
    for each in others:
        if each.facts.task not in lost and (offset := await compare(each)) is not None:
            offsets[each.facts.task] = offset
    return offsets
