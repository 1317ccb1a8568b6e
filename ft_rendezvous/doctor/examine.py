"""One examination, led by the first node: collect reports, look at the endpoint once, let nodes try it, judge.

Alone, a node leads itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.settings import differing_keys
from ft_rendezvous.doctor.endpoint import new_token
from ft_rendezvous.doctor.facts import (
    Answer,
    Attempt,
    Attempts,
    Clients,
    Clock,
    Controller,
    Endpoint,
    Hello,
    Look,
    NameClients,
    NodeFacts,
    Reach,
    ReadClock,
    Request,
    Seen,
    State,
    Step,
)
from ft_rendezvous.doctor.findings import Examination, Finding, Status, worst
from ft_rendezvous.doctor.gather import Asked, gather_facts, read_settings
from ft_rendezvous.doctor.judging import judge
from ft_rendezvous.doctor.meeting import Reception, visit
from ft_rendezvous.doctor.node import Node
from ft_rendezvous.doctor.steps import ask_controller
from ft_rendezvous.store import net

ANSWER_S = 30.0
"""How long a node may take for what it is asked: eight addresses that do not answer, or its lookups."""

PAUSING_S = 0.5
"""A store that takes so long to greet pauses for every client: nobody else is sent there."""

R = TypeVar("R")
T = TypeVar("T", bound=Answer)
Tell = Callable[[Examination, Sequence[Finding]], None]


class Examined(Protocol):
    """A node that can be asked: this one, or a visitor."""

    facts: NodeFacts

    async def ask(self, request: Request, patience_s: float) -> Answer | None: ...


class Myself:
    """The leading node, asked like the others."""

    def __init__(self, facts: NodeFacts, node: Node) -> None:
        self.facts = facts
        self._node = node

    async def ask(self, request: Request, patience_s: float) -> Answer | None:
        del patience_s  # What a node does is bounded by itself.
        return await _in_thread(lambda: self._node.do(request))


def exit_code_of(findings: Sequence[Finding]) -> int:
    return 1 if worst(findings) is Status.FAIL else 0


def follow(asked: Asked, step: Step, env: Mapping[str, str]) -> int:
    """Report to the first node, help it, and return the exit code that it finds. Raises meeting.NobodyThere."""
    facts = gather_facts(asked, step, env)
    node = Node(asked.host, asked.port)
    # SLURM's names need not resolve. srun is most often on the first node, and so is the endpoint.
    hosts = list(dict.fromkeys(filter(None, [*step.hosts[:1], step.launched_from, asked.host])))
    try:
        return visit(facts, step, node, hosts=hosts, taken=asked.port, patience_s=asked.timeout_s)
    finally:
        node.close()


def lead(asked: Asked, step: Step | None, env: Mapping[str, str], tell: Tell) -> int:
    """Examine this node and all that report to it, tell what was found, and let everybody exit with one code."""
    return asyncio.run(_lead(asked, step, env, tell))


async def _lead(asked: Asked, step: Step | None, env: Mapping[str, str], tell: Tell) -> int:
    deadline = time.monotonic() + asked.timeout_s
    reception = None if step is None or step.tasks == 1 else Reception(step)
    is_open = reception is not None and await reception.open(asked.port)
    node = Node(asked.host, asked.port)
    try:
        mine = _in_thread(lambda: gather_facts(asked, step, env))
        site = _in_thread(lambda: None if step is None else ask_controller(step, env))
        facts, controller = await asyncio.gather(mine, site)
        if reception is not None and is_open:
            await reception.wait(deadline)
            reception.close()
        visitors = {} if reception is None else dict(sorted(reception.visitors.items()))
        everybody: list[Examined] = [Myself(facts, node), *visitors.values()]
        misfits = [] if reception is None else list(reception.misfits.values())
        seen = await _examine(
            asked=asked, step=step, env=env, everybody=everybody, misfits=misfits, controller=controller
        )
    finally:
        node.close()
    findings = judge(seen)
    # Before anybody exits: with --kill-on-bad-exit srun ends us with the first that fails.
    tell(seen, findings)
    exit_code = exit_code_of(findings)
    await asyncio.gather(*(visitor.dismiss(exit_code) for visitor in visitors.values()))
    return exit_code


async def _in_thread(call: Callable[[], R]) -> R:
    """Wait for a call in a thread that nobody waits for if we are told to end: asyncio's own are waited for."""
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
    asked: Asked,
    step: Step | None,
    env: Mapping[str, str],
    everybody: Sequence[Examined],
    misfits: Sequence[Hello],
    controller: Controller | None,
) -> Examination:
    lost: set[int] = set()
    token = new_token()
    looker = next((each for each in everybody if each.facts.is_host), everybody[0])
    answer = await _ask(looker, Look(token=token, is_holder=looker.facts.is_host), Seen, lost)
    endpoint = (
        Endpoint(state=State.NO_ANSWER, detail="the node that looked is gone") if answer is None else answer.endpoint
    )
    attempts = await _try_endpoint(endpoint, token, everybody, lost)
    clients = await _ask(looker, NameClients(), Clients, lost) if endpoint.state is State.HELD else None
    offsets = await _compare_clocks(everybody[1:], lost)
    settings, _ = read_settings(asked, step, env, is_node=False)
    run = endpoint.run
    is_same_run = run is not None and settings is not None and run.run_id == asked.run_id and asked.sizes is not None
    return Examination(
        endpoint_name=asked.endpoint,
        port=asked.port,
        nodes=[each.facts for each in everybody],
        expected=1 if step is None else step.tasks,
        waited_s=asked.timeout_s,
        endpoint=endpoint,
        looked=looker.facts.task,
        attempts=attempts,
        clients=clients,
        offsets_s=offsets,
        misfits=misfits,
        lost=sorted(lost),
        controller=controller,
        run_id=asked.run_id,
        run_differs=differing_keys(settings.run.as_dict(), run.settings) if is_same_run and settings and run else (),
        remarks=() if settings is None else tuple(remark_on(settings.run)),
        rules=None if settings is None else settings.run.placement_rules,
        are_sizes_given=asked.sizes is not None,
        lease_s=5.0 if settings is None else settings.run.lease_s,
        files_wanted=0 if settings is None else net.files_wanted(settings.run.max_nodes),
        connections_per_node=net.CONNECTIONS_PER_NODE,
    )


async def _ask(whom: Examined, request: Request, kind: type[T], lost: set[int]) -> T | None:
    answer = await whom.ask(request, ANSWER_S)
    if isinstance(answer, kind):
        return answer
    lost.add(whom.facts.task)
    return None


async def _try_endpoint(
    endpoint: Endpoint, token: str, everybody: Sequence[Examined], lost: set[int]
) -> dict[int, Sequence[Attempt]]:
    """Let every node try to reach it, where that harms nobody."""
    if endpoint.state is State.HELD:
        answers = await asyncio.gather(*(_ask(each, Reach(token=token), Attempts, lost) for each in everybody))
        pairs = zip(everybody, answers, strict=True)
        return {each.facts.task: answer.attempts for each, answer in pairs if answer is not None}
    tried: dict[int, Sequence[Attempt]] = {}
    run = endpoint.run
    if run is None or run.is_sealed or run.verdict or run.cycle_id > 1:
        return tried
    # Nobody has trained there yet. One after the other, and no more of them once it is seen to pause.
    for each in everybody:
        answer = await _ask(each, Reach(), Attempts, lost)
        if answer is not None:
            tried[each.facts.task] = answer.attempts
            if any(attempt.seconds > PAUSING_S for attempt in answer.attempts):
                break
    return tried


async def _compare_clocks(others: Sequence[Examined], lost: set[int]) -> dict[int, tuple[float, float]]:
    """Each clock's offset from ours: it was read somewhere between our asking and our hearing."""

    async def compare(each: Examined) -> tuple[float, float] | None:
        before = time.time()
        answer = await _ask(each, ReadClock(), Clock, lost)
        after = time.time()
        return None if answer is None else (answer.at - (before + after) / 2, (after - before) / 2)

    offsets: dict[int, tuple[float, float]] = {}
    for each in others:
        if each.facts.task not in lost and (offset := await compare(each)) is not None:
            offsets[each.facts.task] = offset
    return offsets
