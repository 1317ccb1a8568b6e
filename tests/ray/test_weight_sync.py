"""Weights go to generators through gloo, by the code of the example, and one generator is lost in the transfer."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from ft_rendezvous.updates import PartyState, UpdateError
from tests.ray.ray_cluster import RayCluster, connected
from tests.support import rl_example
from tests.support.doc_pages import blocks_of
from tests.support.torchrun_cluster import TORCHRUN, Cluster, free_port, send, state_of
from tests.support.waiting import wait_until

STEP_TIMEOUT_S, ABORT_TIMEOUT_S = 20.0, 2.0
"""A stopped generator costs both of them. One that runs needs a fraction of a second."""
EXAMPLE_S = 240.0
NAMES = ("gen-0", "gen-1")

StartSync = Callable[..., Any]


@pytest.fixture
def start_sync(ray_cluster: RayCluster) -> Iterator[StartSync]:
    """A trainer and two generators. Their processes are ended after the test, and so are those that were replaced."""
    begun: list[Any] = []
    with connected(ray_cluster.address):
        ray_cluster.add()

        def start(**settings: Any) -> Any:
            sync_module, generator = rl_example.load("weight_sync"), rl_example.load("generator")
            trainer = sync_module.Trainer(generator.build_policy())
            settings |= {"step_timeout_s": STEP_TIMEOUT_S, "abort_timeout_s": ABORT_TIMEOUT_S}
            begun.append(sync_module.WeightSync(trainer, NAMES, on_unrecoverable="raise", **settings))
            return begun[-1]

        try:
            yield start
        finally:
            for sync in begun:
                sync.close()
            ray_cluster.clear()


def fault_in_transfer(sync: Any, fault: signal.Signals) -> int:
    """The second generator gets a signal when a part of the weights is sent. Returns its process id."""
    pid = int(ray.get(sync.actors["gen-1"].pid.remote(), timeout=60.0))
    sync.trainer.midway = partial(os.kill, pid, fault)
    return pid


def train(sync: Any) -> str:
    """Change the weights. Returns their checksum."""
    with torch.no_grad():
        for weights in sync.trainer._policy.parameters():
            weights.add_(torch.randn_like(weights))
    return str(sync.trainer.checksum())


async def checksums(sync: Any) -> dict[str, str]:
    """Of the generators that may serve."""
    return {party.name: await party.handle.checksum() for party in sync.fleet.serving()}


def versions(sync: Any) -> dict[str, tuple[PartyState, int | None]]:
    return {record.name: (record.state, record.version) for record in sync.fleet.parties if record.name in NAMES}


async def lose_one(sync: Any, fault: signal.Signals, state: PartyState) -> None:
    await sync.wait_until_ready()
    first = train(sync)
    await sync.update(1)
    assert await checksums(sync) == dict.fromkeys(NAMES, first)

    second = train(sync)
    lost_pid = fault_in_transfer(sync, fault)
    try:
        report = await sync.update(2)
        assert (report.outcome, report.attempts, report.failed) == ("completed", 2, ("gen-1",))
        assert versions(sync) == {"gen-0": (PartyState.HEALTHY, 2), "gen-1": (state, 1)}
        assert await checksums(sync) == {"gen-0": second}
        prompts = torch.randn(4, rl_example.load("generator").PROMPT_SIZE)
        answers = await sync.fleet.serving(2)[0].handle.generate(prompts)
        torch.testing.assert_close(answers, sync.trainer._policy(prompts).detach())
    finally:
        send(lost_pid, signal.SIGKILL)  # One that is stopped would not end by itself.
    await sync.replace("gen-1")
    assert versions(sync)["gen-1"][0] is PartyState.STALE
    assert await checksums(sync) == {"gen-0": second}, "the replacement does not serve"
    assert ray.get(sync.actors["gen-1"].checksum.remote(), timeout=60.0) != second

    third = train(sync)
    assert (await sync.update(3)).attempts == 1
    assert await checksums(sync) == dict.fromkeys(NAMES, third)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    wait_until(f"process {lost_pid} has ended", lambda: state_of(lost_pid) in "ZX")


@pytest.mark.parametrize(
    ("fault", "state"),
    [(signal.SIGKILL, PartyState.DEAD), (signal.SIGSTOP, PartyState.SUSPECT)],
    ids=["killed", "stopped"],
)
def test_the_other_generator_serves_the_new_weights(
    start_sync: StartSync, fault: signal.Signals, state: PartyState
) -> None:
    asyncio.run(lose_one(start_sync(), fault, state))


async def lose_too_many(sync: Any) -> None:
    await sync.wait_until_ready()
    first = train(sync)
    await sync.update(1)
    train(sync)
    fault_in_transfer(sync, signal.SIGKILL)
    with pytest.raises(UpdateError, match="step 'transfer'") as caught:
        await sync.update(2)
    assert not caught.value.is_recoverable
    assert await checksums(sync) == {"gen-0": first}
    prompts = torch.randn(4, rl_example.load("generator").PROMPT_SIZE)
    assert await sync.fleet.serving(1)[0].handle.generate(prompts) is not None, "it is not paused any more"


def test_with_too_few_generators_the_other_one_keeps_its_weights_and_goes_on(start_sync: StartSync) -> None:
    asyncio.run(lose_too_many(start_sync(min_parties=2)))


async def differ(sync: Any) -> None:
    await sync.wait_until_ready()
    first = train(sync)
    await sync.update(1)
    second = train(sync)
    sent: list[str] = []

    def send_and_lie() -> str:
        sent.append(type(sync.trainer).send(sync.trainer))
        return "another checksum"

    sync.trainer.send = send_and_lie
    with pytest.raises(UpdateError, match="the weights differ") as caught:
        await sync.update(2)
    assert sent == [second], "all generators had the new weights"
    assert caught.value.cleanup_errors == ()
    assert await checksums(sync) == dict.fromkeys(NAMES, first)


def test_weights_that_are_not_the_same_are_taken_back_on_all(start_sync: StartSync) -> None:
    asyncio.run(differ(start_sync()))


# --- the example ------------------------------------------------------------------------------------


def test_the_example_runs_as_its_readme_says(tmp_path: Path, short_folder: Path) -> None:
    (block,) = [block for block in blocks_of(rl_example.FOLDER / "README.md") if block.language == "bash"]
    program, *words = shlex.split(block.text.replace("\\\n", " ").replace(":29400", f":{free_port()}"))
    assert (program, words[-2:]) == ("torchrun", ["--kill-at", "3"])
    words = [word.replace("examples/rl_weight_sync", str(rl_example.FOLDER)) for word in words]
    cluster = Cluster(tmp_path)
    try:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        run = cluster.spawn("example", [*TORCHRUN, *words], {"RAY_TMPDIR": str(short_folder), "PATH": path})
        assert run.wait_exit(EXAMPLE_S) == 0, run.tail()
        story = [line for line in run.log.splitlines() if not line.startswith(("[ft", " "))]
        told = (
            r"step 2, .*: version 2 is on gen-0 and gen-1 after",
            r"gen-1 is killed in the middle of the transfer",
            r"step 3, .*: version 3 is on gen-0 after .* in 2 tries",
            r"gen-1 is dead; another one is started",
            r"gen-1 is back; it is stale",
            r"step \d+, .*: version \d+ is on gen-0 and gen-1",
            r"all generators serve the trainer's weights",
        )
        rest = iter(story)
        for pattern in told:
            assert any(re.match(pattern, line) for line in rest), f"{pattern!r} is missing\n{run.tail()}"
        counts = [int(count) for count in re.findall(r"answers so far: gen-0 (\d+)", run.log)]
        assert counts[2] < counts[-1], "generation went on with the other one"
    finally:
        left = cluster.close()
        print(cluster.tails())
    assert left == []
