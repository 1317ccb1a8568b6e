"""Collecting reports in one process: from many nodes, and from some that break the rules."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from ft_rendezvous.doctor import collector, examine
from ft_rendezvous.doctor.collector import NoCollector, collector_ports, report_to_collector
from ft_rendezvous.doctor.examine import examine_as_leader, findings_exit_code
from ft_rendezvous.doctor.facts import FACTS_VERSION, EndpointState, Hello, NodeFacts, NodeReport, Step
from ft_rendezvous.doctor.findings import Examination, Finding
from ft_rendezvous.doctor.gather import DoctorOptions
from ft_rendezvous.doctor.node_actions import NodeActions
from tests.contract.strangers import free_port, listener, speak_http
from tests.doctor.build import in_step, node

LONG_S = 60.0
STEP = Step(job_id="no such job", step_id="0", task=1, tasks=2)


class Stage:
    """A step of so many tasks on this machine, with facts that cost nothing to gather."""

    def __init__(self, tasks: int, monkeypatch: pytest.MonkeyPatch, timeout_s: float = LONG_S) -> None:
        self.tasks = tasks
        self.job = str(secrets.randbelow(10**9))
        self.options = DoctorOptions(host="127.0.0.1", port=free_port(), timeout_s=timeout_s)
        monkeypatch.setattr(examine, "gather_facts", lambda _asked, step, _env: self.facts(step.task))
        monkeypatch.setattr(examine, "ask_controller", lambda *_: None)
        self._pool = ThreadPoolExecutor(tasks + 8)
        self._findings: list[tuple[Examination, Sequence[Finding]]] = []
        self._led = self._pool.submit(
            examine_as_leader, self.options, self.step(0), {}, lambda *findings: self._findings.append(findings)
        )

    def step(self, task: int) -> Step:
        return Step(job_id=self.job, step_id="0", task=task, tasks=self.tasks, hosts=("127.0.0.1",))

    def facts(self, task: int) -> NodeFacts:
        return in_step(node(task, is_host=task == 0, machine="one"), self.tasks)

    @property
    def ports(self) -> list[int]:
        return collector_ports(self.step(0).key, self.options.port)

    def report_to_collector(self, task: int, hands: NodeActions | None = None, **changes: Any) -> Any:
        """A node's report and help, in a thread: its exit code in the end."""
        known = {"hosts": ["127.0.0.1"], "taken": self.options.port, "timeout_s": LONG_S, **changes}
        hands = hands or NodeActions(self.options.host, self.options.port)
        return self._pool.submit(report_to_collector, self.facts(task), self.step(task), hands, **known)

    def connect(self) -> socket.socket:
        """To the first node, once it listens, without any manners."""
        for _ in range(int(LONG_S / 0.02)):
            for port in self.ports:
                try:
                    return socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
                except OSError:
                    threading.Event().wait(0.02)
        raise AssertionError("the first node does not listen")

    def hello(self, task: int, **changes: Any) -> bytes:
        known = {"v": FACTS_VERSION, "key": self.step(0).key, "task": task, "host": f"n{task + 1}", "version": "0.1.0"}
        return msgspec.json.encode(Hello(**{**known, **changes})) + b"\n"

    def end(self) -> tuple[Examination, int]:
        """The findings, and the exit code."""
        exit_code = self._led.result(LONG_S)
        ((seen, findings),) = self._findings
        assert exit_code == findings_exit_code(findings)
        return seen, exit_code


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    return lambda tasks, **changes: Stage(tasks, monkeypatch, **changes)


def test_a_hundred_nodes_report_reach_the_endpoint_and_hear_one_verdict(stage: Callable[..., Stage]) -> None:
    step = stage(100)
    codes = [step.report_to_collector(task) for task in range(1, 100)]
    seen, exit_code = step.end()
    assert seen.missing == []
    assert seen.endpoint.state is EndpointState.HELD
    assert len(seen.attempts) == 100
    assert {attempt.error for attempts in seen.attempts.values() for attempt in attempts} == {""}
    assert seen.clients is not None
    assert [lookup.of for lookup in seen.clients.lookups] == ["::ffff:127.0.0.1"]
    assert len(seen.offsets_s) == 99
    assert all(abs(offset) <= error for offset, error in seen.offsets_s.values()), "there is one clock"
    assert {code.result(LONG_S) for code in codes} == {exit_code} == {0}


def test_findings_are_printed_before_any_node_exits(stage: Callable[..., Stage]) -> None:
    """With --kill-on-bad-exit srun ends the one that tells as soon as another has failed."""
    step = stage(2)
    told_by_then: list[int] = []
    code = step.report_to_collector(1)
    code.add_done_callback(lambda _: told_by_then.append(len(step._findings)))
    step.end()
    code.result(LONG_S)
    step._pool.shutdown()
    assert told_by_then == [1]


def test_the_port_is_free_again_when_all_is_reported(stage: Callable[..., Stage]) -> None:
    step = stage(2)
    step.report_to_collector(1).result(LONG_S)
    step.end()
    with socket.create_server(("127.0.0.1", step.options.port)):
        pass


@pytest.mark.parametrize("speech", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"\xff\xfe\n", b"x" * (2 << 20), b""])
def test_other_programs_are_ignored(stage: Callable[..., Stage], speech: bytes) -> None:
    step = stage(2)
    with step.connect() as stranger:
        try:
            stranger.sendall(speech)
            stranger.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It has already been shown out.
        assert step.report_to_collector(1).result(LONG_S) == 0
    assert step.end()[0].missing == []


@pytest.mark.parametrize("wrong", [{"key": "8.0"}, {"task": 0}, {"task": 2}])
def test_a_node_of_another_step_is_refused(stage: Callable[..., Stage], wrong: dict[str, Any]) -> None:
    step = stage(2)
    with step.connect() as stranger:
        stranger.sendall(step.hello(**{"task": 1, **wrong}))
        assert stranger.recv(100) == b""
    assert step.report_to_collector(1).result(LONG_S) == 0
    assert [facts.task for facts in step.end()[0].nodes] == [0, 1]


def test_a_task_comes_once(stage: Callable[..., Stage]) -> None:
    step = stage(3)
    report = msgspec.json.encode(NodeReport(facts=step.facts(1))) + b"\n"
    with step.connect() as first, step.connect() as second:
        for sock in (first, second):
            sock.sendall(step.hello(1))
            assert b"welcome" in sock.recv(1000)
            sock.sendall(report)
        assert second.recv(1000) == b""
    assert step.report_to_collector(2).result(LONG_S) == 1
    seen, _ = step.end()
    assert [facts.task for facts in seen.nodes] == [0, 1, 2]
    assert seen.lost == [1]


def test_a_node_of_another_version_is_named_and_gets_the_reason(stage: Callable[..., Stage]) -> None:
    step = stage(2)
    with step.connect() as newer:
        newer.sendall(step.hello(1, v=FACTS_VERSION + 1, version="9.9"))
        assert b'"end"' in newer.recv(1000)
    seen, exit_code = step.end()
    assert [hello.version for hello in seen.other_versions] == ["9.9"]
    assert exit_code == 1


def test_a_node_hears_that_the_first_one_has_another_version() -> None:
    """It does not go on knocking until its time is over."""

    def be_newer(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b'{"type":"end","exit_code":1}\n')

    with listener(be_newer) as port, pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "collector_ports", lambda *_: [port])
        with pytest.raises(NoCollector, match="install the same everywhere"):
            report_to_collector(
                node(1), STEP, NodeActions("127.0.0.1", 1), hosts=["127.0.0.1"], taken=1, timeout_s=LONG_S
            )


def test_a_node_that_dies_after_its_report_is_reported_as_lost(stage: Callable[..., Stage]) -> None:
    step = stage(3)
    alive = step.report_to_collector(2)
    with step.connect() as dying:
        dying.sendall(step.hello(1))
        assert b"welcome" in dying.recv(1000)
        dying.sendall(msgspec.json.encode(NodeReport(facts=step.facts(1))) + b"\n")
    seen, exit_code = step.end()
    assert seen.lost == [1]
    assert alive.result(LONG_S) == exit_code == 1


def test_a_node_waits_for_the_first_one_only_so_long() -> None:
    with pytest.raises(NoCollector, match=r"could not be reached in time .*Connection refused"):
        report_to_collector(node(1), STEP, NodeActions("127.0.0.1", 1), hosts=["127.0.0.1"], taken=1, timeout_s=0.3)


def test_another_program_on_the_collector_port_is_passed_by(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener(speak_http) as taken:
        ports = [taken, free_port()]
        monkeypatch.setattr(collector, "collector_ports", lambda *_: ports)
        step = stage(2)
        assert step.report_to_collector(1).result(LONG_S) == 0
        assert step.end()[0].missing == []


def test_when_no_collector_port_is_free_the_others_are_missing(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node still tells what it knows of itself."""
    with listener(speak_http) as taken:
        monkeypatch.setattr(collector, "collector_ports", lambda *_: [taken])
        seen, exit_code = stage(2).end()
    assert seen.missing == [1]
    assert exit_code == 1
