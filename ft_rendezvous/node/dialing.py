"""How a node reaches the store of its run: it tries the addresses of the endpoint, and checks whose store is there."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ft_rendezvous.config.settings import RunSettings, Settings, differing_keys
from ft_rendezvous.core.model import Head
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.node.lifeline import Lifeline
from ft_rendezvous.node.threads import Connections
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store import raw_client
from ft_rendezvous.store.raw_client import Found, NoStore, StoreSocket, find_addresses
from ft_rendezvous.text import listing

DIAL_TIMEOUT_S = 10.0
"""After this long, one attempt tries no further address. The next attempt begins with those that are left."""
LONGEST_GREETING_TIMEOUT_S = 30.0
MOST_ADDRESSES_SHOWN = 3


class WrongStore(StoreUnavailable):
    """Another program's store is at the endpoint, or another run's: waiting for long cannot help."""

    def __init__(self, endpoint: str, fact: str) -> None:
        super().__init__(endpoint, fact, is_refused=True)


def is_wrong(error: StoreUnavailable) -> bool:
    """Whether another program has the port."""
    return isinstance(error, WrongStore) or (isinstance(error, NoStore) and error.found is Found.STRANGER)


class StoreDialer:
    """Opens connections to the store of one run.

    The address at which the store was last is tried first: a reset must cost no lease, even while DNS is down. If the
    store is not there, the name is looked up anew, and its addresses are tried in turn.

    A store that accepts connections and does not answer gets twice as long at each attempt. It may be busy with the
    connections of many nodes, and every connection that a node gives up and opens again adds to that.
    """

    def __init__(self, settings: Settings, host: str) -> None:
        self._settings = settings
        self._host = host
        self._port = settings.node.endpoint_port
        self._known: str | None = None
        """The address at which the run's store was last."""
        self._head: Head | None = None
        """The head that was read there."""
        self._failed_at: dict[str, float] = {}
        """When each of the other addresses was last tried, in vain."""
        self._greeting_s: dict[str, float] = {}
        """How long each silent address may take for its first answer at the next attempt."""

    def dial(self) -> Connections:
        """A pair of connections and the head, checked to be the run's. Raises ConfigError if the settings differ."""
        failures: dict[str, StoreUnavailable] = {}
        deadline = time.monotonic() + DIAL_TIMEOUT_S
        for address in self._addresses():
            try:
                connections = self._dial_at(address)
            except StoreUnavailable as error:
                failures[address] = error
                self._failed_at[address] = time.monotonic()
            else:
                self._known, self._head = address, connections.head
                self._greeting_s.clear()
                return connections
            if time.monotonic() >= deadline:
                break
        # The machine that had the store knows best what became of it.
        raise failures.get(self._known or "") or sum_up(self._settings.node.endpoint, failures)

    def dial_listener(self) -> StoreSocket:
        return self._connect(self._known or self._host, None)

    def dial_lifeline(self, incarnation: str) -> Lifeline:
        """A lifeline to the machine at which the store was last. Raises StoreUnavailable."""
        assert self._head is not None, "no store was found yet"
        return Lifeline(self._known or self._host, self._head.lifeline_port, self._head.epoch, incarnation)

    def _connect(self, address: str, timeout_s: float | None) -> StoreSocket:
        greeting_s = self._greeting_s.get(address, raw_client.GREETING_TIMEOUT_S)
        try:
            return StoreSocket(address, self._port, timeout_s, greeting_s)
        except NoStore as error:
            if error.found is Found.SILENT:
                longest_s = min(LONGEST_GREETING_TIMEOUT_S, self._settings.run.join_s)
                self._greeting_s[address] = max(greeting_s, min(2 * greeting_s, longest_s))
            raise

    def _addresses(self) -> Iterator[str]:
        if self._known is not None:
            yield self._known
        try:
            found = find_addresses(self._host, self._port)
        except NoStore:
            if self._known is None:
                raise
            return
        self._failed_at = {address: self._failed_at.get(address, 0.0) for address in found if address != self._known}
        yield from sorted(self._failed_at, key=self._failed_at.__getitem__)

    def _dial_at(self, address: str) -> Connections:
        writer = self._connect(address, self._settings.run.lease_s)
        try:
            head = self._check(_read_head(writer))
            return Connections(writer, self._connect(address, None), head)
        except BaseException:
            writer.close()
            raise

    def _check(self, head: Head | None) -> Head:
        run, endpoint = self._settings.run, self._settings.node.endpoint
        if head is None:
            raise WrongStore(endpoint, "a store is there, but no ft run has begun in it")
        if head.run_id != run.run_id:
            raise WrongStore(endpoint, f"the store there serves run {head.run_id!r}, not {run.run_id!r}")
        _check_settings(head, run)
        return head


def sum_up(endpoint: str, failures: Mapping[str, StoreUnavailable]) -> StoreUnavailable:
    """What the attempts at all addresses mean together.

    The store may yet come up at an address that is silent or refuses. So the endpoint is wrong only if each address is,
    and it refuses only if each address does.
    """
    errors = list(failures.values())
    if len(errors) == 1:
        return errors[0]
    by_fact: defaultdict[str, list[str]] = defaultdict(list)
    for address, error in sorted(failures.items()):
        by_fact[error.fact].append(address)
    fact = "; ".join(f"{fact} ({listing(where, MOST_ADDRESSES_SHOWN)})" for fact, where in sorted(by_fact.items()))
    if all(is_wrong(error) for error in errors):
        return WrongStore(endpoint, fact)
    return StoreUnavailable(endpoint, fact, is_refused=all(error.is_refused for error in errors))


def _read_head(store: StoreSocket) -> Head | None:
    return perform_move(store, moves.find_head())


def _check_settings(head: Head, run: RunSettings) -> None:
    differing = differing_keys(run.as_dict(), head.settings)
    if differing:
        raise ConfigError(
            f"this node's settings differ from the run's: {'; '.join(differing)}: "
            "use the same --nnodes and --rdzv-conf on all nodes, and for ftr serve"
        )
