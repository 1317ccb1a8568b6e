"""What the driver asks the actors of a run, and what their answers say of nodes and run. Decides nothing.

No question is lost: an actor that is out of reach is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from ft_rendezvous.launch.ray import cluster
from ft_rendezvous.launch.ray.machine import (
    NodeAnswered,
    NodeDied,
    NodeExited,
    NodeRefused,
    NodeStarted,
    NodeUnavailable,
    Observation,
    RayMachine,
    RunIsOver,
    StoreSilent,
)

import ray  # isort: skip - After `cluster`, which says what to do if there is no Ray.
from ray.exceptions import ActorUnavailableError, RayError  # isort: skip

ANSWER_WAIT_S = 0.25
"""How long one step waits for an answer. The driver sees a signal after that."""
FIRST_SIGNAL_CODE = 128
ASK_AGAIN_S = 1.0
"""How soon an actor that was out of reach is asked again."""


class RayQuestion(Enum):
    """What the actor of a node was asked."""

    START = auto()
    PING = auto()
    WAIT = auto()
    IS_OVER = auto()
    """Asked of the actor of the run: is it over, now that this node has exited with an error?"""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that has no answer yet."""

    node: int
    start: int
    question: RayQuestion
    code: int = 0
    """How the node has exited, if this is asked because of it."""


def explain_store_end(code: int) -> str:
    """Why the store has ended, if not because its run has."""
    if 0 <= code < FIRST_SIGNAL_CODE:
        return ""
    signum = -code if code < 0 else code - FIRST_SIGNAL_CODE
    return f"the store was ended by signal {signum}, and the run with it: see store.log, then start the run again"


@dataclass
class RayQuestions:
    """All questions that wait for an answer."""

    machine: RayMachine
    has_own_store: bool
    run_actor: Any = field(init=False, default=None)
    actors: dict[int, Any] = field(init=False, default_factory=dict)
    """The newest actor of each node."""
    _calls: dict[Any, OpenQuestion] = field(init=False, default_factory=dict)
    _asks_again: dict[tuple[int, int], float] = field(init=False, default_factory=dict)
    """When to ask an actor again that was out of reach, by node and start."""
    _end_call: Any = field(init=False, default=None)
    _asks_end_at: float | None = field(init=False, default=None)

    def ask_for_end(self) -> None:
        """Ask the actor of the run for the end of its store."""
        self._end_call = cluster.ask_to_wait(self.run_actor.wait_end)

    def expect_start(self, node: int, start: int, actor: Any, call: Any) -> None:
        """This new actor of a node was asked to start torchrun."""
        self.actors[node] = actor
        self._calls[call] = OpenQuestion(node, start, RayQuestion.START)

    def adopt(self, node: int, start: int, actor: Any) -> None:
        """This actor of an earlier driver may live."""
        self.actors[node] = actor
        self._ask(node, start, RayQuestion.PING)

    def answers(self, now: float) -> Iterator[Observation]:
        """What the answers say that have come. Waits for a moment if there is none."""
        for (node, start), due in list(self._asks_again.items()):
            if now >= due:
                del self._asks_again[node, start]
                if self.machine.nodes[node].start == start:
                    self._ask(node, start, RayQuestion.PING)
        if self._end_call is None and self._asks_end_at is not None and now >= self._asks_end_at:
            self._asks_end_at = None
            self.ask_for_end()
        waiting = [*self._calls, *([] if self._end_call is None else [self._end_call])]
        if not waiting:
            time.sleep(ANSWER_WAIT_S)
            return
        ray.wait(waiting, timeout=ANSWER_WAIT_S)
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for ref in ready:
            if ref == self._end_call:
                yield from self._take_end(ref)
            else:
                yield from self._take_answer(ref, self._calls.pop(ref))

    def _take_end(self, ref: Any) -> Iterator[Observation]:
        self._end_call = None
        try:
            code = ray.get(ref)
        except ActorUnavailableError:
            self._asks_end_at = time.monotonic() + ASK_AGAIN_S
        except RayError as error:
            yield RunIsOver(f"the actor of the run is gone: {cluster.explain_death(error)}")
        else:
            if code is None:
                self.ask_for_end()
            else:
                yield RunIsOver(explain_store_end(code))

    def _take_answer(self, ref: Any, asked: OpenQuestion) -> Iterator[Observation]:
        node, start = asked.node, asked.start
        if asked.question is RayQuestion.IS_OVER:
            yield from self._take_exit(ref, asked)
            return
        try:
            answer = ray.get(ref)
        except ActorUnavailableError:
            self._asks_again[node, start] = time.monotonic() + ASK_AGAIN_S
            yield NodeUnavailable(node, start)
            return
        except RayError as error:
            yield NodeDied(node, start, cluster.explain_death(error))
            return
        match asked.question:
            case RayQuestion.START if "refusal" in answer:
                yield NodeRefused(node, start, answer["refusal"])
            case RayQuestion.START:
                yield NodeStarted(node, start, answer["where"])
                self._ask(node, start, RayQuestion.WAIT)
            case RayQuestion.PING:
                yield NodeAnswered(node, start)
                self._ask(node, start, RayQuestion.WAIT)
            case RayQuestion.WAIT if answer is None:
                self._ask(node, start, RayQuestion.WAIT)
            case RayQuestion.WAIT if answer == 0:
                yield NodeExited(node, start, answer)
            case RayQuestion.WAIT:
                # All nodes exit with an error when the run fails. The verdict was there before they did.
                self._calls[self.run_actor.is_over.remote()] = OpenQuestion(node, start, RayQuestion.IS_OVER, answer)

    def _take_exit(self, ref: Any, asked: OpenQuestion) -> Iterator[Observation]:
        """A node has exited with an error, and the actor of the run has said whether the run is over."""
        yield NodeExited(asked.node, asked.start, asked.code)
        try:
            is_over = ray.get(ref)
        except RayError:
            return  # The beat to this actor says more.
        if is_over:
            yield RunIsOver() if self.has_own_store else StoreSilent()

    def _ask(self, node: int, start: int, question: RayQuestion) -> None:
        actor = self.actors[node]
        asked = cluster.ask_to_wait(actor.wait) if question is RayQuestion.WAIT else actor.ping.remote()
        self._calls[asked] = OpenQuestion(node, start, question)
