"""The store that `next_rendezvous()` gives to the elastic agent.

A stock agent blocks in C++ on its store: a dead peer holds it for a store timeout, and signals wait. So this is a
Python store whose waits use a condition:

- it answers worker ranks from the seat, without any operation, so nothing can block between seal and start;
- an agent that enters the exit barrier tells the coordinator "finished", and its wait ends when the run is closed;
- anything else goes to the run's store under the cycle's prefix, and a wait ends when the cycle is over.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store
from torch.distributed.elastic.agent.server import api as agent_api
from torch.distributed.elastic.utils import store as store_util

from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.threads import Link
from ft_rendezvous.protocol.ops import Add, Append, Check, Delete, Get, MultiGet, MultiSet, Op, Set
from ft_rendezvous.protocol.participant import Place

_ASSIGNED = re.compile(r"torchelastic/assigned_ranks/(\d+)")
FIRST_POLL_S, LONGEST_POLL_S = 0.005, 0.25


def barrier_keys() -> tuple[str, str]:
    """Torch's names for the exit barrier's counter and for its completion."""
    prefix = agent_api._TERMINAL_STATE_SYNC_ID
    return prefix + store_util._NUM_MEMBERS, prefix + store_util._LAST_MEMBER_CHECKIN


class AgentStore(Store):
    """One cycle's store for one agent."""

    def __init__(self, link: Link, place: Place) -> None:
        super().__init__()
        self._link = link
        self._place = place
        self._timeout = timedelta(seconds=300)
        self._entered_key, self._complete_key = barrier_keys()

    # --- the exit barrier and the worker ranks ------------------------------------------------------

    def add(self, key: str, amount: int) -> int:
        if key == self._entered_key:
            self._link.finish(self._place.cycle_id)
            return amount
        return int(self._do(Add(self._name(key), amount)))

    def set(self, key: str, value: str | bytes) -> None:
        is_answered = key == self._complete_key or self._is_role_info(key) or self._seat_answers(key) is not None
        if not is_answered:
            self._do(Set(self._name(key), _bytes(value)))

    def get(self, key: str) -> bytes:
        answer = self._seat_answers(key)
        if answer is not None:
            return answer
        self.wait([key])
        return bytes(self._do(Get(self._name(key))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        if list(keys) == [self._complete_key]:
            # The coordinator ends the barrier, however long the slowest node takes.
            self._link.await_verdict()
            return
        self._wait_for(keys, timeout or self._timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if self._place.workers is not None and all(self._is_role_info(key) for key in keys):
            # Rank 0 computes from these what every seat already says. Each node needs one entry, with any content.
            return [_role_info(index) for index in range(len(keys))]
        self.wait(keys)
        return list(self._do(MultiGet([self._name(key) for key in keys])))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if self._place.workers is None or not all(_ASSIGNED.fullmatch(key) for key in keys):
            self._do(MultiSet([self._name(key) for key in keys], [_bytes(value) for value in values]))

    def _seat_answers(self, key: str) -> bytes | None:
        """The value of a key that the seat knows: this node's own worker ranks."""
        match = _ASSIGNED.fullmatch(key)
        workers = self._place.workers
        if match is None or workers is None or int(match[1]) != self._place.rank:
            return None
        ranks = [
            workers.base_global_rank,
            workers.global_world_size,
            workers.base_role_rank,
            workers.role_world_size,
        ]
        return json.dumps(ranks).encode()

    def _is_role_info(self, key: str) -> bool:
        return self._place.workers is not None and key.startswith("torchelastic/role_info/")

    # --- everything else ----------------------------------------------------------------------------

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._do(Check([self._name(key) for key in keys])))

    def append(self, key: str, value: str | bytes) -> None:
        self._do(Append(self._name(key), _bytes(value)))

    def delete_key(self, key: str) -> bool:
        return bool(self._do(Delete(self._name(key))))

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _name(self, key: str) -> str:
        return self._link.agent_key(self._place.cycle_id, key)

    def _do(self, op: Op) -> Any:
        return self._link.perform(op)

    def _wait_for(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait for keys that the seat does not know, until the cycle is over at the latest.

        The stock agent never waits here. Polling needs no connection beside the link's two.
        """
        cycle_id = self._place.cycle_id
        deadline = time.monotonic() + timeout.total_seconds()
        poll_s = FIRST_POLL_S
        while not self.check(keys):
            if time.monotonic() >= deadline:
                raise DistStoreError(f"{list(keys)} did not appear within {timeout}")
            if self._link.must_stop(cycle_id):
                raise StoreUnavailable("agent store", f"cycle {cycle_id} is over: rejoin")
            time.sleep(poll_s)
            poll_s = min(poll_s * 2, LONGEST_POLL_S)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _role_info(rank: int) -> bytes:
    info: str | bytes = agent_api._RoleInstanceInfo("", rank, 0).serialize()
    return _bytes(info)
