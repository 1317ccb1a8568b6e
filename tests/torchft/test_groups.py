"""Real groups of real processes train with torchft on gloo, while groups are killed, stopped, continued and replaced.

The bounds are wide: the machine may be busy. What they must tell apart is the minute that gloo's timeout takes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torchft")

from tests.support.waiting import wait_until
from tests.torchft.groups_rig import START_TIMEOUT_S, Group, GroupsRig

MAX_GAP_S = 30.0
"""Half of the timeout of gloo. Without the release, survivors of a stopped group wait for that timeout."""
FOREVER = ("--steps=1000000", "--step-s=0.1")

RigMaker = Callable[..., GroupsRig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[RigMaker]:
    rigs: list[GroupsRig] = []

    def make(count: int, world_size: int = 1) -> GroupsRig:
        rigs.append(GroupsRig(tmp_path, count, world_size))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def state_of(group: Group) -> str:
    """As in /proc: T is stopped, Z is dead."""
    return Path(f"/proc/{group.processes[0].pid}/stat").read_text().rpartition(")")[2].split()[0]


def check_gaps(rig: GroupsRig, groups: list[Group], since: float) -> None:
    for group in groups:
        assert rig.gap_s(group.number, since) < MAX_GAP_S, rig.explain()
        assert [process.poll() for process in group.processes] == [None] * rig.world_size, rig.explain()


def test_groups_train_on_while_others_are_lost_and_come_back(make_rig: RigMaker) -> None:
    rig = make_rig(3)
    rig.start_all(*FOREVER)
    rig.wait_for_all(3)
    first, second, third = rig.groups

    began = time.monotonic()
    third.signal(signal.SIGKILL)
    rig.tell_of(third)
    rig.wait_for_all(2)
    third.start(rig.script(*FOREVER))
    rig.wait_for_all(3)
    check_gaps(rig, [first, second], began)

    # Of the group that is stopped, no socket closes.
    began = time.monotonic()
    second.signal(signal.SIGSTOP)
    rig.tell_of(second)
    rig.wait_for_all(2)
    check_gaps(rig, [first, third], began)

    # Its place is given away. When it goes on, it ends by itself, and the others do not notice.
    began = time.monotonic()
    second.is_trusted = False
    second.signal(signal.SIGCONT)
    assert second.wait() == [1], rig.explain()
    rig.wait_for_all(2)
    second.start(rig.script(*FOREVER))
    rig.wait_for_all(3)
    check_gaps(rig, [first, third], began)

    # Ids of quorums go on, although the stores of the groups remember those before.
    began = time.monotonic()
    pid = rig.lighthouse.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    rig.wait_for_all(3, more=10)
    check_gaps(rig, rig.groups, began)
    rig.check_digests()


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
def test_a_group_may_be_lost_between_its_quorum_and_its_first_connection(
    signum: signal.Signals, make_rig: RigMaker
) -> None:
    rig = make_rig(3)
    third = rig.groups.pop()
    rig.start_all(*FOREVER)
    rig.wait_for_all(2)
    began = time.monotonic()
    rig.groups.append(third)
    third.start(("-m", "tests.torchft.victim", signum.name, *rig.script(*FOREVER)[1:]))
    wait_until("it is lost", lambda: state_of(third) in ("T", "Z"), START_TIMEOUT_S, rig.explain)
    # The others connect to it now, or are about to.
    rig.tell_of(third)
    rig.wait_for_all(2)
    check_gaps(rig, rig.groups[:2], began)
    rig.check_digests()


def test_a_group_that_is_restarted_on_request_leaves_at_once(make_rig: RigMaker) -> None:
    """Its workers live on until their agent stops them. Its manager would keep the others waiting."""
    rig = make_rig(2)
    rig.start_all(*FOREVER)
    rig.wait_for_all(2)
    began = time.monotonic()
    rig.tell_of(rig.groups[1])
    rig.wait_for_all(1)
    assert rig.groups[1].wait() == [1], rig.explain()
    check_gaps(rig, rig.groups[:1], began)


def test_all_groups_end_well_with_the_same_weights(make_rig: RigMaker, tmp_path: Path) -> None:
    """Two ranks per group. One group is killed and heals; one comes back when the others have finished."""
    rig = make_rig(2, world_size=2)
    options = ("--steps=40", "--step-s=0.3", f"--checkpoint={tmp_path / 'checkpoint.pt'}", "--save-every=1000")
    rig.start_all(*options)
    rig.wait_for_all(2)
    killed = rig.groups[1]
    killed.signal(signal.SIGKILL)
    rig.tell_of(killed)
    killed.start(rig.script(*options))
    for group in rig.groups:
        assert group.wait() == [0, 0], rig.explain()
    killed.start(rig.script(*options))
    assert killed.wait() == [0, 0], rig.explain()
    done = rig.lines("done")
    assert sorted((line.group, line.rank) for line in done) == [(0, 0), (0, 1), *[(1, 0)] * 2, *[(1, 1)] * 2]
    assert len({(line.step, line.digest) for line in done}) == 1, done
    rig.check_digests()
