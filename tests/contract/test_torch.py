"""What we rely on in torch, and what torch's own agent finds in our store and handler."""

from __future__ import annotations

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import DistStoreError, HashStore
from torch.distributed.elastic.agent.server import api as agent_api
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.utils import store as store_util

from ft_rendezvous.agent import entry, torch_patches
from ft_rendezvous.agent.agent_store import AgentStore, barrier_keys
from ft_rendezvous.agent.handler import FtRendezvousHandler, create_handler
from ft_rendezvous.agent.torch_parts import PARTS, TESTED_TORCH, missing_parts
from ft_rendezvous.config.settings import NodeSettings, Settings, parse_settings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict, VerdictKind
from ft_rendezvous.core.seats import rank_workers
from ft_rendezvous.doctor.checks.software import SUPPORTED
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.protocol.node_policy import ends_well
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.protocol.worker_policy import SPENT_REASON, STUCK_REASON
from tests.agent.fake_link import FakeLink
from tests.contract.benches import LONG_S
from tests.contract.live import LiveNode, LiveRun, live_run
from tests.support.proxy import Proxy

# --- names in torch ---------------------------------------------------------------------------------


def test_the_exit_barrier_is_where_torch_says() -> None:
    assert barrier_keys() == (
        "torchelastic/agent/terminal_state/num_members",
        "torchelastic/agent/terminal_state/last_member",
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (agent_api, "_TERMINAL_STATE_SYNC_ID"),
        (store_util, "_NUM_MEMBERS"),
        (store_util, "_LAST_MEMBER_CHECKIN"),
    ],
)
def test_a_torch_without_the_exit_barrier_is_refused_by_the_creator(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.delattr(module, name)
    with pytest.raises(ConfigError, match=rf"{module.__name__}\.{name}.* tested with torch .* install"):
        create_handler(parameters())


# --- the wrappers -----------------------------------------------------------------------------------


def parameters(**changes: Any) -> RendezvousParameters:
    known = {"backend": "ft", "endpoint": "127.0.0.1:29400", "run_id": "r", "min_nodes": 1, "max_nodes": 1}
    return RendezvousParameters(**{**known, **changes})


def our_handler() -> FtRendezvousHandler:
    """A handler that has met nobody."""
    parsed = parse_settings(endpoint="127.0.0.1:29400", run_id="r", min_nodes=1, max_nodes=1, conf={}, env={})
    return FtRendezvousHandler(parsed)


class Agent(SimpleElasticAgent):
    """Torch's agent, whose work is what the test says."""

    def __init__(self, handler: RendezvousHandler, work: Any) -> None:
        super().__init__(
            WorkerSpec(role="trainer", local_world_size=3, rdzv_handler=handler, entrypoint="none", max_restarts=0)
        )
        self._work = work

    def _invoke_run(self, role: str = "default") -> RunResult:  # noqa: ARG002
        result: RunResult = self._work()
        return result

    def _record_metrics(self, group_results: RunResult) -> None: ...
    def _record_worker_events(self, result: RunResult) -> None: ...
    def _start_workers(self, worker_group: Any) -> dict[int, Any]: ...  # type: ignore[empty-body]
    def _stop_workers(self, worker_group: Any, is_restart: bool = False) -> None: ...
    def _monitor_workers(self, worker_group: Any) -> RunResult: ...  # type: ignore[empty-body]
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None: ...


@pytest.fixture
def stock_run() -> Iterator[Any]:
    """Torch's own `run`, put back after the test."""
    installed = SimpleElasticAgent.run
    stock = getattr(installed, torch_patches._ORIGINAL, installed)
    SimpleElasticAgent.run = stock  # type: ignore[method-assign]
    yield stock
    SimpleElasticAgent.run = installed  # type: ignore[method-assign]


def leave_gracefully() -> RunResult:
    raise RendezvousGracefulExitError("the run has succeeded")


def test_installing_twice_wraps_once(stock_run: Any) -> None:
    torch_patches.install(FtRendezvousHandler)
    once = SimpleElasticAgent.run
    torch_patches.install(FtRendezvousHandler)
    assert SimpleElasticAgent.run is once
    assert getattr(once, torch_patches._ORIGINAL) is stock_run


@pytest.mark.usefixtures("stock_run")
@pytest.mark.parametrize(("module_name", "part"), [(module, part) for module in PARTS for part in PARTS[module]])
def test_a_torch_that_lacks_a_part_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, module_name: str, part: str
) -> None:
    assert missing_parts() == []
    owner_name, _, attribute = part.partition(".")
    module = importlib.import_module(module_name)
    if attribute:
        monkeypatch.setattr(module, owner_name, object)
    else:
        monkeypatch.delattr(module, owner_name)
    assert f"{module_name}.{part}" in missing_parts()
    creator = entry.get_creator()
    with pytest.raises(ConfigError) as raised:
        creator(parameters())
    assert f"torch {torch.__version__} lacks" in str(raised.value)
    assert f"{module_name}.{part}" in str(raised.value)
    assert f"tested with torch {TESTED_TORCH}: install one of these" in str(raised.value)


def test_a_torch_without_a_module_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.events", None)
    assert missing_parts() == ["torch.distributed.elastic.events"]


def test_the_doctor_names_the_same_versions_of_torch() -> None:
    assert TESTED_TORCH == SUPPORTED


def test_every_name_of_torch_that_we_import_or_reach_into_is_a_listed_part() -> None:
    """The list is written by hand; this finds what it lacks."""
    package = Path(torch_patches.__file__).parent.parent
    listed = {(module, part.split(".")[0]) for module in PARTS for part in PARTS[module]}
    listed_attributes = {name for parts in PARTS.values() for part in parts for name in part.split(".")}
    for path in [*sorted((package / "agent").glob("*.py")), package / "launch" / "cycle_logs.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                for alias in node.names:
                    is_module = f"{node.module}.{alias.name}" in PARTS
                    assert is_module or (node.module, alias.name) in listed, f"{path.name}: {node.module}.{alias.name}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("agent", "agent_api", "store_util"):
                assert not node.attr.startswith("_") or node.attr in listed_attributes, f"{path.name}: {node.attr}"


# --- workers that fail or hang ----------------------------------------------------------------------


class FailingAgent(Agent):
    """An agent whose monitor returns these results, one after the other; as torch's own loop does, it then gives up."""

    def __init__(self, handler: FtRendezvousHandler, *results: RunResult) -> None:
        super().__init__(handler, self._loop)
        self._results = iter(results)
        self.seen: list[WorkerState] = []

    def _start_workers(self, worker_group: Any) -> dict[int, Any]:  # noqa: ARG002
        return {}

    def _monitor_workers(self, worker_group: Any) -> RunResult:  # noqa: ARG002
        return next(self._results)

    def _loop(self) -> RunResult:
        group = self.get_worker_group()
        group.workers = []
        handler: Any = group.spec.rdzv_handler
        handler.workers.set_place(handler._session.link, handler._place)
        self._start_workers(group)
        while True:
            result = self._monitor_workers(group)
            self.seen.append(result.state)
            if result.state is not WorkerState.HEALTHY:
                self._shutdown()
                return result


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def seated_handler(link: FakeLink, stock_run: Any) -> FtRendezvousHandler:  # noqa: ARG001
    """A handler with a place in cycle 1 of a run that is not there."""
    handler = our_handler()
    handler._session = SimpleNamespace(link=link)  # type: ignore[assignment]
    handler._place = place_of(0, [("trainer", 3)])
    torch_patches.install(FtRendezvousHandler)
    return handler


def failed() -> RunResult:
    failure: Any = SimpleNamespace(exitcode=7)
    return RunResult(WorkerState.FAILED, failures={2: failure})


def test_an_agent_that_has_spent_its_restarts_says_goodbye_before_it_stops_its_workers(
    seated_handler: FtRendezvousHandler, link: FakeLink
) -> None:
    assert FailingAgent(seated_handler, failed()).run().state is WorkerState.FAILED
    ((_, end),) = link.reports
    assert (end.rank, end.exit_code) == (2, 7)
    assert link.goodbyes == [(Outcome.FAILED, SPENT_REASON)]


def test_workers_that_hang_in_the_kernel_are_a_failure_and_a_goodbye(
    seated_handler: FtRendezvousHandler, link: FakeLink
) -> None:
    """Torch's monitor then returns UNHEALTHY, and the agent gives up this node."""
    agent = FailingAgent(seated_handler, RunResult(WorkerState.UNHEALTHY))
    with pytest.raises(RendezvousError, match="UNHEALTHY and cannot be restarted"):
        agent.run()
    ((cycle_id, end),) = link.reports
    assert (cycle_id, end.reason) == (1, STUCK_REASON)
    assert link.goodbyes == [(Outcome.FAILED, STUCK_REASON)]


def test_a_failure_is_hidden_from_the_agent_only_while_the_cycle_is_over(
    seated_handler: FtRendezvousHandler, link: FakeLink
) -> None:
    link.is_cycle_over = True
    agent = FailingAgent(seated_handler, failed(), failed())
    monitor = agent._monitor_workers

    def monitor_and_go_on(worker_group: Any) -> RunResult:
        """The second look finds a cycle that goes on."""
        link.is_cycle_over = not agent.seen
        return monitor(worker_group)

    agent._monitor_workers = monitor_and_go_on  # type: ignore[method-assign]
    assert agent.run().state is WorkerState.FAILED
    assert agent.seen == [WorkerState.HEALTHY, WorkerState.FAILED]
    assert [end.rank for _, end in link.reports] == [2]


def test_a_torch_that_does_not_call_its_own_methods_is_named_once(
    seated_handler: FtRendezvousHandler, caplog: pytest.LogCaptureFixture
) -> None:
    def start_and_ask() -> RunResult:
        """As if torch had moved the code of both methods into its loop."""
        seated_handler.num_nodes_waiting()
        seated_handler.num_nodes_waiting()
        return failed()

    caplog.set_level("WARNING", "ft_rendezvous")
    Agent(seated_handler, start_and_ask).run()
    (warning,) = [record.getMessage() for record in caplog.records if "does not call" in record.getMessage()]
    assert f"torch {torch.__version__} does not call _start_workers, _monitor_workers of its agent" in warning


def test_an_agent_that_calls_our_wrappers_is_no_reason_to_warn(
    seated_handler: FtRendezvousHandler, link: FakeLink, caplog: pytest.LogCaptureFixture
) -> None:
    class Polling(FailingAgent):
        def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:  # noqa: ARG002
            seated_handler.num_nodes_waiting()

    caplog.set_level("WARNING", "ft_rendezvous")
    Polling(seated_handler, failed()).run()
    assert link.reports
    assert "does not call" not in caplog.text


def test_a_node_that_leaves_gracefully_has_succeeded_with_no_results() -> None:
    handler = our_handler()
    assert Agent(handler, leave_gracefully).run() is None, "torch has fixed pytorch #194710: drop this seam"
    torch_patches.install(FtRendezvousHandler)
    result = Agent(handler, leave_gracefully).run()
    assert result.state is WorkerState.SUCCEEDED
    assert not result.is_failed()
    assert result.return_values == {}


@pytest.mark.usefixtures("stock_run")
def test_an_agent_of_another_backend_is_as_torch_made_it() -> None:
    class OtherHandler(RendezvousHandler):
        def next_rendezvous(self) -> Any: ...
        def is_closed(self) -> bool: ...  # type: ignore[empty-body]
        def set_closed(self) -> None: ...
        def num_nodes_waiting(self) -> int: ...  # type: ignore[empty-body]
        def get_run_id(self) -> str: ...  # type: ignore[empty-body]
        def get_backend(self) -> str: ...  # type: ignore[empty-body]
        def shutdown(self) -> bool: ...  # type: ignore[empty-body]

    torch_patches.install(FtRendezvousHandler)
    assert Agent(OtherHandler(), leave_gracefully).run() is None
    assert Agent(OtherHandler(), lambda: RunResult(WorkerState.SUCCEEDED)).run().state is WorkerState.SUCCEEDED


@pytest.mark.usefixtures("stock_run")
def test_the_handler_learns_what_the_agent_starts() -> None:
    handler = our_handler()
    torch_patches.install(FtRendezvousHandler)
    Agent(handler, leave_gracefully).run()
    info = handler._node_info()
    assert (info.role, info.local_world_size) == ("trainer", 3)


@pytest.mark.usefixtures("stock_run")
@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        pytest.param(None, RendezvousConnectionError, id="unknown"),
        pytest.param(Verdict(VerdictKind.FAILED, "node 7"), RendezvousClosedError, id="failed"),
        pytest.param(Verdict(VerdictKind.CANCELLED), RendezvousClosedError, id="cancelled"),
        pytest.param(Verdict(VerdictKind.SUCCEEDED), None, id="succeeded"),
    ],
)
def test_a_node_whose_workers_ended_well_succeeds_only_with_its_run(
    verdict: Verdict | None, error: type[Exception] | None
) -> None:
    """Torch's agent swallows every error of its exit barrier and would exit 0."""
    handler = our_handler()
    handler._session = SimpleNamespace(
        link=SimpleNamespace(verdict=verdict, ends_well=lambda verdict: ends_well(verdict, is_going=False))
    )  # type: ignore[assignment]
    torch_patches.install(FtRendezvousHandler)
    agent = Agent(handler, lambda: RunResult(WorkerState.SUCCEEDED))
    if error is None:
        assert agent.run().state is WorkerState.SUCCEEDED
    else:
        with pytest.raises(error):
            agent.run()


@pytest.mark.usefixtures("stock_run")
def test_a_signal_is_followed_by_a_goodbye_and_goes_on_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = our_handler()
    said: list[object] = []
    monkeypatch.setattr(handler, "shutdown", lambda: said.append(sys.exc_info()[1]))
    torch_patches.install(FtRendezvousHandler)

    def be_killed() -> RunResult:
        raise SignalException("killed", signal.SIGTERM)

    with pytest.raises(SignalException):
        Agent(handler, be_killed).run()
    assert [type(error) for error in said] == [SignalException]


# --- the entry point --------------------------------------------------------------------------------


def test_torchrun_finds_the_backend_and_gets_a_creator() -> None:
    (entry,) = entry_points(group="torchrun.handlers", name="ft")
    creator = entry.load()()
    assert isinstance(creator(parameters()), FtRendezvousHandler)


def test_torchs_registry_makes_our_handler() -> None:
    handler = rendezvous_handler_registry.create_handler(parameters())
    assert isinstance(handler, FtRendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id(), handler.num_nodes_waiting()) == ("ft", "r", 0)
    assert not handler.is_closed()
    assert handler.shutdown() is True


def test_a_mistake_in_the_command_reaches_the_user_as_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"unknown --rdzv-conf key 'lease_timout'.*'lease_timeout'"):
        create_handler(parameters(lease_timout="5"))


@pytest.mark.parametrize(("value", "shares"), [("0", True), ("1", False)])
def test_torchs_switch_for_sharing_the_store_is_honoured(
    monkeypatch: pytest.MonkeyPatch, value: str, shares: bool
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)
    assert create_handler(parameters()).use_agent_store is shares


def test_the_backend_is_registered_when_torchs_agent_is_imported_first() -> None:
    """Torch loads entry points in the middle of importing itself, and turns an error there into a warning."""
    code = (
        "import torch.distributed.elastic.agent.server\n"
        "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry\n"
        "print('ft' in registry._registry)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.stdout.strip() == "True", done.stderr


# --- worker ranks -----------------------------------------------------------------------------------

Shape = tuple[str, int]


def spec_of(shape: Shape) -> WorkerSpec:
    spec: WorkerSpec = SimpleNamespace(role=shape[0], local_world_size=shape[1])  # type: ignore[assignment]
    return spec


def assign(store: Any, rank: int, shapes: Sequence[Shape]) -> list[tuple[int, ...]]:
    """The worker ranks torch's agent works out on a store."""
    workers = SimpleElasticAgent._assign_worker_ranks(object(), store, rank, len(shapes), spec_of(shapes[rank]))
    return [(w.local_rank, w.global_rank, w.role_rank, w.world_size, w.role_world_size) for w in workers]


def assign_on_hash_store(shapes: Sequence[Shape]) -> list[list[tuple[int, ...]]]:
    """What stock agents agree on among themselves."""
    store = HashStore()
    for rank, (role, size) in enumerate(shapes):
        store.set(f"torchelastic/role_info/{rank}", agent_api._RoleInstanceInfo(role, rank, size).serialize().decode())
    return [assign(store, rank, shapes) for rank in range(len(shapes))]


def place_of(rank: int, shapes: Sequence[Shape]) -> Place:
    nodes = [NodeInfo(addr="a", pid=1, role=role, local_world_size=size) for role, size in shapes]
    workers = rank_workers(nodes)
    assert workers is not None
    return Place(1, "0" * 16, rank, len(shapes), "a", 1, workers[rank])


shapes_of_a_world = st.lists(
    st.tuples(st.sampled_from(["trainer", "reader", "ps"]), st.integers(1, 8)), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(shapes=shapes_of_a_world)
def test_an_agent_gets_the_ranks_it_would_have_agreed_on_without_any_operation(shapes: list[Shape]) -> None:
    no_link: Any = object()
    ours = [assign(AgentStore(no_link, place_of(rank, shapes)), rank, shapes) for rank in range(len(shapes))]
    assert ours == assign_on_hash_store(shapes)


def test_agents_whose_seats_do_not_know_the_workers_agree_through_the_store() -> None:
    """As torch's agent does where nobody has told the handler its role: the cycle's own keys carry it."""
    shapes = [("trainer", 2), ("reader", 3)]
    with live_run() as run:
        nodes = [run.node(number, infra_rank=number, role=None, local_world_size=None) for number in range(2)]
        places = run.seal(*nodes)
        assert [place.workers for place in places] == [None, None]
        asked = [run.do(lambda rank=rank: assign(nodes[rank].agent_store, rank, shapes)) for rank in (1, 0)]  # type: ignore[misc]
        assert [future.result(LONG_S) for future in reversed(asked)] == assign_on_hash_store(shapes)


# --- the agent's store ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed() -> Iterator[tuple[LiveRun, list[LiveNode]]]:
    """A run of two that trains, for tests that only look at its agent stores."""
    with live_run() as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        yield run, nodes


def test_the_stock_exit_barrier_ends_with_the_run() -> None:
    with live_run(min_nodes=3) as run:
        nodes = [run.node(number) for number in range(3)]
        run.seal(*nodes)
        entered = [node.finish() for node in nodes[:2]]
        assert not any(future.done() for future in entered)
        entered.append(nodes[2].finish())
        for future in entered:
            future.result(LONG_S)
        assert {str(node.link.verdict) for node in nodes} == {"succeeded"}


def test_the_stock_exit_barrier_outlasts_torchs_own_limit() -> None:
    """Torch gives up after 300 s; a node whose workers take longer than the others' still has its store."""
    limit_s = 0.2
    with live_run() as run:
        quick, slow = run.node(1), run.node(2)
        run.seal(quick, slow)
        store = quick.agent_store
        waiting = run.do(lambda: store_util.barrier(store, 2, agent_api._TERMINAL_STATE_SYNC_ID, limit_s))
        run.wait_for(lambda: run.host.coordinator.roster.finished_count == 1)
        with pytest.raises(TimeoutError):
            waiting.result(5 * limit_s)
        assert slow.finish().result(LONG_S) is None
        waiting.result(LONG_S)
        assert str(quick.link.verdict) == "succeeded"


def test_the_stock_exit_barrier_lets_go_when_the_run_fails() -> None:
    with live_run() as run:
        a, b = run.node(1), run.node(2)
        run.seal(a, b)
        entered = a.finish()
        parked = b.ask()
        entered.result(LONG_S)
        verdict = parked.result(LONG_S)
        assert isinstance(verdict, Verdict)
        assert verdict == a.link.verdict
        assert verdict.kind is VerdictKind.FAILED
        assert "1 node finished" in verdict.reason


def test_a_stock_barrier_of_another_name_works_like_on_any_store(sealed: tuple[LiveRun, list[LiveNode]]) -> None:
    run, nodes = sealed
    waiting = [
        run.do(lambda node=node: store_util.barrier(node.agent_store, 2, "somebody/elses", 60))  # type: ignore[misc]
        for node in nodes
    ]
    for future in waiting:
        future.result(LONG_S)


def test_values_go_from_agent_to_agent(sealed: tuple[LiveRun, list[LiveNode]]) -> None:
    _, nodes = sealed
    here, there = (node.agent_store for node in nodes)
    here.set("text", "value")
    here.set("bytes", b"\x00\xff")
    assert there.get("text") == b"value"
    assert there.get("bytes") == b"\x00\xff"
    assert there.multi_get(["text", "bytes"]) == [b"value", b"\x00\xff"]
    here.append("log", "a")
    there.append("log", b"b")
    assert here.get("log") in (b"ab", b"ba")
    assert [here.add("count", 2), there.add("count", 3)] == [2, 5]
    here.multi_set(["m1", "m2"], ["1", b"2"])
    assert there.multi_get(["m1", "m2"]) == [b"1", b"2"]
    assert there.check(["m1", "m2"]) is True
    assert there.delete_key("m1") is True
    assert here.check(["m1", "m2"]) is False


def test_a_wait_for_a_key_that_does_not_come_ends_with_torchs_own_error(
    sealed: tuple[LiveRun, list[LiveNode]],
) -> None:
    _, (node, _) = sealed
    with pytest.raises(DistStoreError, match="did not appear"):
        node.agent_store.wait(["never"], timedelta(seconds=0.2))
    store = node.agent_store
    store.set_timeout(timedelta(seconds=0.2))
    assert store.timeout == timedelta(seconds=0.2)
    with pytest.raises(DistStoreError, match="did not appear"):
        store.get("never")


def test_a_seat_answers_for_its_own_node_only(sealed: tuple[LiveRun, list[LiveNode]]) -> None:
    _, (node, _) = sealed
    store, place = node.agent_store, node.place
    assert place is not None
    store.set_timeout(timedelta(seconds=0.2))
    assert json.loads(store.get(f"torchelastic/assigned_ranks/{place.rank}"))[1] == 4
    with pytest.raises(DistStoreError, match="did not appear"):
        store.get(f"torchelastic/assigned_ranks/{1 - place.rank}")


def test_a_wait_for_a_key_ends_with_the_cycle() -> None:
    """A peer that died cannot hold an agent for the 300 s of a store timeout."""
    with live_run() as run:
        a, b = run.node(1), run.node(2)
        run.seal(a, b)
        waiting = run.do(lambda: a.agent_store.get("what b would have written"))
        b.leave()
        with pytest.raises(StoreUnavailable, match="cycle 1 is over: rejoin"):
            waiting.result(LONG_S)


# --- the handler ------------------------------------------------------------------------------------


def test_a_node_alone_goes_through_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FT_CYCLE_ID", "FT_INCARNATION", "FT_NODE_RANK", "FT_NODE_INFRA_RANK", "FT_NODE_DOMAIN"):
        monkeypatch.setenv(name, "before")
    with live_run() as other:  # Only to be given a port that is free.
        port = other.port
    handler = create_handler(parameters(endpoint=f"127.0.0.1:{port}", is_host="1", infra_rank="5", domain="rack"))
    handler.attach("trainer", 2)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info is not None
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert assign(info.store, 0, [("trainer", 2)]) == assign_on_hash_store([("trainer", 2)])[0]
    assert os.environ["FT_CYCLE_ID"] == "1"
    assert (os.environ["FT_NODE_RANK"], os.environ["FT_NODE_INFRA_RANK"], os.environ["FT_NODE_DOMAIN"]) == (
        "0",
        "5",
        "rack",
    )
    assert handler.num_nodes_waiting() == 0
    again = handler.next_rendezvous()
    assert os.environ["FT_CYCLE_ID"] == "2"
    assert again.bootstrap_store_info is not None
    assert again.bootstrap_store_info.master_port != info.bootstrap_store_info.master_port, "a store per cycle"
    store_util.barrier(again.store, 1, agent_api._TERMINAL_STATE_SYNC_ID, 300)
    assert handler.is_closed()
    handler.check_end()
    assert handler.shutdown() is True
    assert handler.shutdown() is True, "torch may call it twice"
    handler.detach()


def test_assigned_ranks_are_json_as_torch_reads_it() -> None:
    no_link: Any = object()
    store = AgentStore(no_link, place_of(1, [("trainer", 2), ("trainer", 3)]))
    assert json.loads(store.get("torchelastic/assigned_ranks/1")) == [2, 5, 2, 5]


def test_a_connection_that_is_reset_in_the_exit_barrier_costs_a_node_nothing() -> None:
    """Its workers ended well and the run succeeds: it hears the verdict in the barrier, over another connection."""
    with live_run() as run, Proxy(run.port) as proxy:

        def handler_at(port: int) -> FtRendezvousHandler:
            node = NodeSettings(endpoint_host="127.0.0.1", endpoint_port=port, is_host=False)
            handler = FtRendezvousHandler(Settings(run=run.settings, node=node))
            handler._role, handler._local_world_size = "trainer", 1
            return handler

        handlers = [handler_at(run.port), handler_at(proxy.port)]
        places = [future.result(LONG_S) for future in [run.do(handler.next_rendezvous) for handler in handlers]]

        def enter(index: int) -> None:
            store_util.barrier(places[index].store, 2, agent_api._TERMINAL_STATE_SYNC_ID, 300)

        waiting = run.do(lambda: enter(1))
        run.wait_for(lambda: run.host.coordinator.roster.finished_count == 1)
        proxy.cut()
        run.do(lambda: enter(0)).result(LONG_S)
        waiting.result(LONG_S)
        for handler in handlers:
            handler.check_end()
            assert handler.shutdown()
        assert run.host.wait(LONG_S)
        assert str(run.host.verdict) == "succeeded"
