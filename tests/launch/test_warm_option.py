"""`--warm`: all launchers give torchrun the same variable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ft_rendezvous.cli.demo.command import DemoOptions, plan_demo
from ft_rendezvous.cli.demo.promises import DemoStory, list_facts
from ft_rendezvous.launch.local import plan_local
from ft_rendezvous.launch.options import Options
from ft_rendezvous.launch.ray.commands import dry_run
from ft_rendezvous.launch.ray.request import RayRequest
from ft_rendezvous.warm.nursery import find_command
from tests.support.doc_pages import ROOT

PREFIX = ["env", "PYTHON_EXEC=ftr-python"]


@pytest.mark.parametrize("is_warm", [False, True])
def test_nodes_on_this_machine(is_warm: bool) -> None:
    plan = plan_local(Options(script=("train.py",), is_warm=is_warm), "2+1", "run", 29400)
    assert all((list(node.command[:2]) == PREFIX) is is_warm for node in plan.nodes)
    assert "torchrun" in plan.nodes[0].command


@pytest.mark.parametrize("is_warm", [False, True])
def test_nodes_on_ray(is_warm: bool) -> None:
    lines = dry_run(RayRequest(script=("train.py",), is_warm=is_warm))
    assert lines[-1].startswith(" ".join(PREFIX) + " python ") is is_warm


def test_the_demo_is_warm_unless_it_shall_not_be() -> None:
    options = DemoOptions(actives=1, spares=0, steps=20, lease_s=3.0, kills=False, timeout_s=60.0)
    for each in (options, replace(options, is_warm=False)):
        command = plan_demo(each, ROOT, "token").nodes[0].command
        assert (list(command[:2]) == PREFIX) is each.is_warm


def test_the_demo_says_what_was_saved() -> None:
    story = DemoStory(40, sealed_ns={1: 0, 2: 10_000_000_000}, first_step_ns={1: 5_000_000_000, 2: 10_300_000_000})
    story.worlds, story.resumed_at = {1: {0: "a"}, 2: {0: "a"}}, {1: 0, 2: 10}
    story.victim, story.killed_in, story.killed_ns = "b", 1, 9_500_000_000
    assert "0.3 s from their places to the first step, and 5.0 s in cycle 1" in list_facts(story, is_warm=True)[-1]
    assert "warm" not in "".join(list_facts(story))


def test_the_client_runs_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_command("/usr/bin/python3", ("-u", "train.py")) is None
    assert find_command(print, ()) is None
    command = find_command("ftr-python", ("-u", "train.py"))
    assert command is not None
    assert command[1][:2] == ("-I", "-S")
    assert command[1][3:] == ("-u", "train.py")
    monkeypatch.setattr("shutil.which", lambda _name: "/other/bin/ftr-python")
    assert find_command("ftr-python", ()) is None, "it belongs to another Python"
