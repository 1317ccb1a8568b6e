"""A fleet of parties: it updates them together, and knows which of them may serve."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from ft_rendezvous import worker
from ft_rendezvous.errors import ConfigError, UpdateError
from ft_rendezvous.text import one_line
from ft_rendezvous.updates.membership import FleetMembership, PartyRecord
from ft_rendezvous.updates.party import Party, await_in_thread
from ft_rendezvous.updates.rules import Ending, EndKind, FleetRules
from ft_rendezvous.updates.update_run import Flow, UpdateRun
from ft_rendezvous.worker import UpdateReport

log = logging.getLogger("ft_rendezvous")

RESTART_WAIT_S = 30.0
"""How long an update waits for its process to be stopped after it asked for a restart. A script that raised at once
would exit with an error, and its node would be blamed for it."""

OnUnrecoverable = Literal["raise", "restart"] | Callable[[UpdateError], Awaitable[object] | object]


class Fleet:
    """Parties that are updated together. All methods are called in the thread of one event loop."""

    def __init__(
        self,
        parties: Iterable[Party],
        *,
        min_parties: int = 1,
        step_timeout_s: float = 60.0,
        cleanup_timeout_s: float | None = None,
        abort_timeout_s: float = 5.0,
        max_party_failures: int = 3,
        on_unrecoverable: OnUnrecoverable | None = None,
    ) -> None:
        self._rules = FleetRules(
            min_parties=min_parties,
            step_timeout_s=step_timeout_s,
            cleanup_timeout_s=cleanup_timeout_s,
            abort_timeout_s=abort_timeout_s,
            max_party_failures=max_party_failures,
        )
        if isinstance(on_unrecoverable, str) and on_unrecoverable not in ("raise", "restart"):
            raise ConfigError(f"on_unrecoverable is {on_unrecoverable!r}: give 'raise', 'restart' or a function")
        self._on_unrecoverable = on_unrecoverable
        self._membership = FleetMembership(parties, max_party_failures)
        self._version_under_way: int | None = None

    # --- parties ------------------------------------------------------------------------------------

    @property
    def parties(self) -> tuple[PartyRecord, ...]:
        """What is known of every party."""
        return self._membership.records

    def serving(self, min_version: int | None = None) -> tuple[Party, ...]:
        """The parties that may serve: an update completed on them, with at least this version."""
        return self._membership.serving(min_version)

    def put(self, party: Party) -> None:
        """Enter a party that is new, or that came back under this name. It does not serve before its next update."""
        self._membership.put(party)

    def mark_restarting(self, name: str) -> None:
        """A replacement of this party is on its way."""
        self._membership.restart(name)

    def mark_failed(self, name: str, error: BaseException) -> None:
        """A call of this party failed outside of updates. It does not serve before its next update."""
        is_dead = self._membership[name].party.adapter.judge(error) is EndKind.DEAD
        self._membership.fail_outside(name, is_dead=is_dead)

    # --- updates ------------------------------------------------------------------------------------

    async def update(self, flow: Flow, *, version: int) -> UpdateReport:
        """Run the flow on all parties that take part, and once more without those that failed.

        Raises `UpdateError` if the update did not complete, or if a party could not be cleaned up.
        """
        if self._version_under_way is not None:
            raise RuntimeError(f"the update to version {self._version_under_way} is under way: await it first")
        self._version_under_way = version
        try:
            run = UpdateRun(self._membership, self._rules, flow, version)
            report = await run.run()
        finally:
            self._version_under_way = None
        try:
            worker.report_update(report)
        except Exception:  # It is for those who look at the run. The error of the update must not be lost for it.
            log.exception("the update to version %s was not reported", version)
        if run.interrupt is not None:
            raise run.interrupt
        if run.error is not None:
            if run.ending is Ending.UNRECOVERABLE:
                await self._escalate(run.error)
            raise run.error
        return report

    async def _escalate(self, error: UpdateError) -> None:
        resort = self._on_unrecoverable
        if resort is None:
            resort = "raise" if worker.info() is None else "restart"
        if resort == "restart":
            await _restart(error)
        elif callable(resort):
            await _call(resort, error)


async def _restart(error: UpdateError) -> None:
    if not worker.request_restart(one_line(str(error))):
        error.add_note("there is no agent to ask for a restart")
        return
    log.error("%s; asked for a restart of this group", one_line(str(error)))
    await asyncio.sleep(RESTART_WAIT_S)
    error.add_note(f"a restart was asked for, and did not come within {RESTART_WAIT_S:g} s")


async def _call(function: Callable[[UpdateError], object], error: UpdateError) -> None:
    try:
        if inspect.iscoroutinefunction(function):
            await function(error)
        else:
            await await_in_thread(function, error)
    except Exception as failure:  # The error of the update is the one that the caller must see.
        log.exception("on_unrecoverable failed")
        error.add_note(f"on_unrecoverable failed: {failure!r}")
