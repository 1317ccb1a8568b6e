"""What an operator does with a run on Ray from outside: look at it, and end it."""

from __future__ import annotations

import signal
import time

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray import cluster
from ft_rendezvous.launch.ray.cluster import try_call, try_call_all
from ft_rendezvous.launch.ray.head_watch import while_head_lives
from ft_rendezvous.launch.ray.machine import STOP_GRACE_S
from ft_rendezvous.launch.runner import say

ANSWER_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.5
HEAD_TIMEOUT_S = 10.0
"""How long the head may be silent while an operator waits."""
NEXT_STEP = "start the cluster again; the runs that it had are gone"


def describe_runs(name: str, address: str) -> list[tuple[str, str, str, str, str, str]]:
    """A row for each node of one run or of all: run, store, node, start, state, machine. Raises ConfigError."""
    head = cluster.find_head(address)
    return while_head_lives(head, lambda: _describe_runs(name, head), NEXT_STEP, HEAD_TIMEOUT_S)


def _describe_runs(name: str, head: str) -> list[tuple[str, str, str, str, str, str]]:
    with cluster.connected(head):
        names = cluster.run_names()
        if name and name not in names:
            raise ConfigError(f"there is no run {name} on this cluster: {_list(names)}")
        return [row for each in ([name] if name else names) for row in _describe(each)]


def _describe(name: str) -> list[tuple[str, str, str, str, str, str]]:
    actors = cluster.find_actors(name)
    manifest = try_call(actors["run"].manifest, timeout_s=ANSWER_TIMEOUT_S) if "run" in actors else None
    store = "gone" if manifest is None else manifest.get("endpoint", "starting")
    machines = {each.id: each.address for each in cluster.machines()}
    newest: dict[str, int] = {}
    for rest in actors:
        if rest.startswith("node-"):
            node, _, start = rest.removeprefix("node-").partition(".")
            newest[node] = max(int(start), newest.get(node, 0))
    asked = {node: actors[f"node-{node}.{start}"].state for node, start in newest.items()}
    answers = dict(zip(asked, try_call_all(list(asked.values()), ANSWER_TIMEOUT_S), strict=True))
    rows = []
    for group, facts in cluster.groups_of(name).items():
        for bundle in range(facts.size):
            node = str(bundle) if group == "min" else group.removeprefix("node-")
            machine = machines.get(facts.machines.get(bundle, ""), "")
            state, last = "pending" if not (facts.is_placed and machine) else "placed", newest.get(node)
            if last is not None:
                state = answers[node] or "out of reach"
            rows.append((name, store, node, "" if last is None else str(last), state, machine))
    return sorted(rows, key=lambda row: int(row[2])) or [(name, store, "", "", "no node", "")]


def stop_run(name: str, address: str) -> None:
    """End all nodes of a run gently, then remove what is left. Raises ConfigError if there is no such run."""
    head = cluster.find_head(address)
    while_head_lives(head, lambda: _stop_run(name, head), NEXT_STEP, HEAD_TIMEOUT_S)


def _stop_run(name: str, head: str) -> None:
    with cluster.connected(head):
        actors = cluster.find_actors(name)
        if not actors and not cluster.groups_of(name):
            raise ConfigError(f"there is no run {name} on this cluster: {_list(cluster.run_names())}")
        if "run" in actors:
            try_call(actors["run"].stop, timeout_s=ANSWER_TIMEOUT_S)
        nodes = [actor for rest, actor in actors.items() if rest.startswith("node-")]
        say(f"run {name}: stopping {len(nodes)} nodes")
        for actor in nodes:
            actor.send_signal.remote(int(signal.SIGTERM))
        deadline = time.monotonic() + STOP_GRACE_S
        while nodes and time.monotonic() < deadline:
            states = try_call_all([actor.state for actor in nodes], ANSWER_TIMEOUT_S)
            nodes = [actor for actor, state in zip(nodes, states, strict=True) if state == "running"]
            time.sleep(POLL_INTERVAL_S)
        cluster.remove_run(name)
        say(f"run {name} has been stopped and removed")


def _list(names: list[str]) -> str:
    return f"it has {', '.join(names)}" if names else "it has none"
