"""An operator: `node.operator` in virtual time. It asks once, waits for the answer, and goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ft_rendezvous.core.model import Request, RequestKind
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.operator import ANSWER_TIMEOUT_S
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Move
from tests.sim.kernel import Call, Connection, Delays, Process, Routine, Thread

if TYPE_CHECKING:
    from tests.sim.world import World


class SimOperator(Process):
    """One request of an operator."""

    def __init__(self, world: World, name: str, kind: RequestKind, target: str = "", *, is_hasty: bool = False) -> None:
        super().__init__(world.kernel, name)
        self._world = world
        self._kind = kind
        self._target = target
        self._is_hasty = is_hasty
        """It does not wait for the answer."""
        self._delays = Delays(typical_s=1e-3)
        Thread(self, "operator", self._ask())

    def _ask(self) -> Routine:
        try:
            said = yield from self._request()
        except StoreUnavailable as error:
            said = f"gets no answer: {error}"
        self._world.tell(self.name, said)
        self.die()

    def _request(self) -> Routine:
        voice = self._connect("voice")
        head = yield from self._perform(voice, moves.find_head())
        if head is None or head.view.closed is not None:
            return "finds no run that is open"
        request = Request(
            cycle_id=head.view.cycle_id,
            incarnation=self._world.new_id(),
            kind=self._kind,
            target=self._target,
            reason="maintenance",
        )
        keys = Keys(head.epoch)
        yield from self._perform(voice, moves.write_record(keys, head.view.opened, request))
        if self._is_hasty:
            return "does not wait for an answer"
        answer = yield from self._perform(self._connect("ear"), moves.read_answer(keys, request.incarnation))
        return f"is answered: {'yes' if answer.is_granted else 'no'}, {answer.text[:80]}"

    def _connect(self, name: str) -> Connection:
        return Connection(self, self._world.server, self._delays, f"{self.name} {name}")

    def _perform(self, connection: Connection, move: Move[Any]) -> Routine:
        reply: Any = None
        while True:
            try:
                op = move.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = yield Call(connection, op, ANSWER_TIMEOUT_S)
