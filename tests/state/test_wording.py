"""There is a sentence for every event, and nothing in it that a terminal would obey."""

from __future__ import annotations

from typing import get_args

import pytest

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import AnyWhy, NodesLost, Outcome
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.codec import BadRecord
from ft_rendezvous.state.model.events import SOURCES, StateTold, decode_line, encode_state_line, make_event
from ft_rendezvous.state.model.run_state import RunState, cause_of
from ft_rendezvous.state.model.wording import CAUSE_WORDS, describe, local_time, names_in
from ft_rendezvous.state.read.log_reader import Missing, describe_missing
from ft_rendezvous.text import clean, duration
from tests.state.group_story import tell_group_story
from tests.state.recording import record_seed
from tests.state.story import tell_story

SEEDS = range(80)


def test_every_kind_of_event_has_its_sentence() -> None:
    told: set[type] = set()
    for seed in SEEDS:
        names: dict[str, str] = {}
        for event in record_seed(seed).events:
            names.update(names_in(event))
            sentence = describe(event, names)
            assert sentence
            assert "\n" not in sentence
            assert "None" not in sentence, sentence
            told.add(type(event.event))
    rare: list[journal.Entry] = [
        journal.RecordRefused(cycle_id=1, record=BadRecord("no record", "x")),
        journal.HostLeft(),
        journal.CauseCorrected(cycle_id=2, why=NodesLost(("n1",), (3,))),
        journal.NodeUnhealthy(cycle_id=1, incarnation="a" * 16, node="n1", reason="a bad disk"),
        journal.NodeParked(cycle_id=1, incarnation="a" * 16, node="n1", losses=3, within_s=3600.0, for_s=3595.0),
        journal.NodeUnparked(cycle_id=1, incarnation="a" * 16, node="n1"),
        journal.CycleCalled(cycle_id=1, incarnations=(), roles=(), nodes=(), reason="growth"),
        journal.CycleSettled(cycle_id=1, failures=2, first=None),
        journal.GroupDissolved(cycle_id=4, group=1, reason="group 0 needs its nodes", changed={"a" * 16: Role.STANDBY}),
        journal.RankLate(cycle_id=4, node="n1", rank=3, text="no progress for 30.0 s after step 7"),
        journal.HangDenied(cycle_id=4, rank=3, reason="a pause was announced, rank 0: checkpoint"),
        journal.HangFound(cycle_id=4, node="n1", rank=3, step=7, reason="rank 3 is in f", stacks={"3": "f"}),
        journal.HangFound(cycle_id=4, node=None, rank=0, step=None, reason="no rank has a stack", stacks={}),
    ]
    assert [describe(make_event(1, 0, entry)) for entry in rare] == [
        "a record was refused: no record: x",
        "the store host was ended, and the run with it",
        "the cause of cycle 2 is corrected: lost n1 (rank 3)",
        "n1 is not fit to train: a bad disk",
        "n1 is parked for 59 min 55 s: lost 3 times within 1 h 00 min",
        "n1 is not parked any more",
        "cycle 2 is called at the next checkpoint: growth",
        "cycle 1 is settled: no node is charged for 2 failures",
        "group 1 is dissolved: group 0 needs its nodes; 1 node stands by",
        "rank 3 on n1 is late: no progress for 30.0 s after step 7",
        "rank 3 is late, and there is no hang: a pause was announced, rank 0: checkpoint",
        "workers hang at step 7: rank 3 is in f; n1 is blamed",
        "workers hang: no rank has a stack; no node is blamed",
    ]
    assert told | {type(entry) for entry in rare} == set(get_args(journal.Entry))


def test_every_kind_of_event_says_what_it_is_about() -> None:
    assert set(SOURCES) == {*get_args(journal.Entry), StateTold}


def test_a_told_state_says_that_something_is_missing() -> None:
    story = tell_story()
    event = decode_line(encode_state_line(story.state))
    assert describe(event) == "events before this are missing; by now: FINISHED in cycle 5, 0 nodes alive"
    assert dict(names_in(event))[story.lives[3]] == story.name(3)
    assert describe(decode_line(encode_state_line(RunState()))).endswith("INITIALIZING, 0 nodes alive")


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((2, 0, 1, 0), "2 nodes keep their ranks, 1 node is new; spares cover no loss"),
        ((1, 1, 0, 2), "1 node keeps its rank, 1 node has another rank, 2 nodes are spares now; spares cover no loss"),
        ((0, 0, 1_000, 0), "1,000 nodes are new; spares cover no loss"),
    ],
)
def test_a_placement_is_told_in_a_sentence(counts: tuple[int, int, int, int], sentence: str) -> None:
    kept, moved, new, benched = counts
    entry = journal.CyclePlaced(
        cycle_id=3, kept=kept, moved=moved, new=new, benched=benched, effect="spares cover no loss"
    )
    assert describe(make_event(1, 0, entry)) == f"cycle 3 is placed: {sentence}"


def test_who_is_not_known_by_name_is_told_by_incarnation() -> None:
    entry = journal.NodesSilent(cycle_id=1, silent_s={"a" * 16: 2.5})
    assert describe(make_event(1, 0, entry)) == f"{'a' * 16} has been silent for 2.5 s"
    assert describe(make_event(1, 0, entry), {"a" * 16: "n1"}) == "n1 has been silent for 2.5 s"
    many = journal.NodesArrived(cycle_id=1, incarnations=tuple(f"{number:016d}" for number in range(5_000)))
    assert len(describe(make_event(1, 0, many))) < 250


def test_what_a_terminal_would_obey_is_taken_out() -> None:
    entry = journal.NodeWent(
        cycle_id=1,
        incarnation="a" * 16,
        node="n\x1b]0;owned\x07",
        role=Role.STANDBY,
        outcome=Outcome.LEFT,
        reason="\x1b[2J\r\nbye\x9b31m",
    )
    assert describe(make_event(1, 0, entry)) == "n ]0;owned  went, left:  [2J bye 31m"
    assert clean(" a\u2028b\x00 ") == "a b"


def test_every_cause_has_its_words() -> None:
    assert set(CAUSE_WORDS) == {str(why.__struct_config__.tag) for why in get_args(AnyWhy)}
    assert {cause_of(cycle.why) for cycle in tell_story().state.cycles} <= set(CAUSE_WORDS)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1.0, "0 ms"),
        (0.0354, "35 ms"),
        (0.9999, "1.0 s"),
        (4.24, "4.2 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3_599.7, "1 h 00 min"),
        (7_500, "2 h 05 min"),
        (273_600, "3 d 04 h"),
    ],
)
def test_a_duration_is_as_precise_as_its_size_deserves(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_time_that_cannot_be_is_told_as_it_is() -> None:
    assert local_time(10**30) == f"{10**30} ns"


def test_what_is_missing_is_told() -> None:
    assert describe_missing(Missing()) == ""
    assert describe_missing(Missing(events=1, damaged_lines=1)) == "1 event is missing, 1 line is damaged"
    told = "2,000 events are missing, the last line is torn; what happened last is not known"
    assert describe_missing(Missing(events=2_000, torn=True, at_end=True)) == told


def test_what_happens_to_one_group_names_it() -> None:
    story = tell_group_story()
    names: dict[str, str] = {}
    told = []
    for line in story.lines:
        event = decode_line(line)
        names.update(names_in(event))
        told.append(describe(event, names))
    text = "\n".join(told)
    for sentence in (
        "cycle 1 is sealed after 2.5 s: 6 nodes train in 3 groups, 1 stand by; master 10.0.0.10:20001",
        "cycle 2 of group 1 opens: workers failed on infra rank 3",
        "cycle 2 of group 1 waits: 1 survivor is stopping workers",
        "cycle 2 of group 1 is sealed after 2.1 s: 2 nodes train; master",
        "infra rank 5 at 10.0.0.15 pid 4305 stands by for any group",
    ):
        assert sentence in text


def test_a_dissolved_group_is_told() -> None:
    entry = journal.GroupDissolved(cycle_id=4, group=2, reason="it lacks nodes", changed={"a" * 16: Role.STANDBY})
    assert describe(make_event(1, 0, entry)) == "group 2 is dissolved: it lacks nodes; 1 node stands by"
