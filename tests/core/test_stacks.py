"""Where ranks are: grouping of stacks, and the odd ones out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.hangs import ANSWER_TIMEOUT_S, Hang, Inquiry, NoHang, Suspect
from ft_rendezvous.core.model import Stacks
from ft_rendezvous.core.stacks import (
    MAX_FRAMES,
    MAX_STACKS_BYTES,
    Frame,
    RankStack,
    Stack,
    describe_place,
    group_stacks,
    judge_stacks,
    normalise,
    trim,
)
from ft_rendezvous.protocol.codec import MAX_RECORD_BYTES, encode_record

MAIN = Frame("main", "train.py", 41, False)
ALL_REDUCE: Stack = (
    Frame("all_reduce", "distributed/distributed_c10d.py", 2810, True),
    Frame("wrapper", "distributed/c10d_logger.py", 81, True),
    MAIN,
)
LOADER: Stack = (
    Frame("_next_data", "data/dataloader.py", 700, True),
    Frame("__next__", "data/dataloader.py", 690, True),
    Frame("main", "train.py", 33, False),
)


def ranks(numbers: Sequence[int], stack: Stack, step: int | None = 7) -> RankStack:
    return RankStack(tuple(numbers), tuple(step for _ in numbers), stack)


def test_the_odd_one_out_is_named() -> None:
    others = [rank for rank in range(32) if rank != 3]
    odd = judge_stacks([ranks(others, ALL_REDUCE), ranks([3], LOADER)], 32)
    assert odd.odd_ranks == (3,)
    assert str(odd) == (
        "31 ranks wait in all_reduce, called at train.py:41, rank 3 is in __next__, called at train.py:33"
    )


def test_without_a_majority_all_are_named_and_none_is_odd() -> None:
    odd = judge_stacks([ranks([0, 1], ALL_REDUCE), ranks([2, 3], LOADER)], 4)
    assert odd.odd_ranks == ()
    assert str(odd).startswith("ranks 0, 1 are in all_reduce")


def test_ranks_that_did_not_answer_count_against_a_majority() -> None:
    assert judge_stacks([ranks([0, 1], ALL_REDUCE), ranks([2], LOADER)], 4).odd_ranks == ()
    odd = judge_stacks([ranks([0, 1, 2], ALL_REDUCE), ranks([3], LOADER)], 5)
    assert odd.odd_ranks == (3,)
    assert "1 rank did not answer" in str(odd)


def test_a_rank_without_a_stack_is_neither_odd_nor_a_majority() -> None:
    assert judge_stacks([ranks([0, 1, 2], ()), ranks([3], LOADER)], 4).odd_ranks == ()
    assert judge_stacks([ranks([0, 1, 2], ALL_REDUCE), ranks([3], ())], 4).odd_ranks == ()


def test_lines_of_a_library_do_not_count_and_those_of_the_script_do() -> None:
    library = (Frame("wait", "lib.py", 1, True), MAIN)
    elsewhere = (Frame("wait", "lib.py", 2, True), MAIN)
    assert normalise(library) == normalise(elsewhere)
    assert normalise((MAIN,)) != normalise((Frame("main", "train.py", 42, False),))


def test_where_a_rank_is_is_said_in_the_words_of_the_script() -> None:
    assert describe_place((Frame("fetch", "train.py", 12, False), MAIN)) == "is in fetch (train.py:12)"
    assert describe_place((Frame("select", "selectors.py", 5, True),)) == "is in select (selectors.py:5)"
    assert describe_place((Frame("wrapper", "a.py", 1, True), Frame("get", "queue.py", 5, True), *LOADER[:1])) == (
        "is in get (queue.py:5)"
    )
    assert describe_place(()) == "has no stack"


frames = st.builds(Frame, st.text(max_size=80), st.text(max_size=120), st.integers(0, 10**6), st.booleans())
stacks = st.lists(frames, max_size=40).map(tuple)


@given(st.lists(stacks, min_size=1, max_size=64))
def test_what_a_node_tells_fits_into_a_record_and_names_every_rank(each: list[Stack]) -> None:
    told, depth = trim([RankStack((rank,), (10**12,), stack) for rank, stack in enumerate(each)])
    assert sorted(rank for group in told for rank in group.ranks) == list(range(len(each)))
    assert all(len(group.stack) <= depth <= MAX_FRAMES for group in told)
    assert len(msgspec.json.encode(told)) <= MAX_STACKS_BYTES
    record = Stacks(
        cycle_id=1 << 31,
        incarnation="0" * 16,
        inquiry=1 << 31,
        stacks=told,
        depth=depth,
        paused=tuple((1 << 31, "p" * 60) for _ in range(8)),
        moving=(1 << 31,) * 8,
    )
    assert len(encode_record(record)) <= MAX_RECORD_BYTES + 2


small = st.sampled_from([ALL_REDUCE, LOADER, (MAIN,), ()])


@given(st.lists(small, min_size=1, max_size=12), st.integers(0, 4), st.randoms())
def test_the_odd_ones_are_those_that_are_not_with_more_than_half_of_all(
    each: list[Stack], silent: int, random: object
) -> None:
    """Against counting by hand; in any order, and split over nodes in any way."""
    found = [RankStack((rank,), (None,), stack) for rank, stack in enumerate(each)]
    random.shuffle(found)  # type: ignore[attr-defined]
    odd = judge_stacks(group_stacks(found[: len(found) // 2]) + found[len(found) // 2 :], len(each) + silent)
    majority = [s for s in {normalise(s): s for s in each if s}.values() if 2 * each.count(s) > len(each) + silent]
    expected = [r for r, s in enumerate(each) if s and majority and s != majority[0]]
    assert list(odd.odd_ranks) == expected
    assert odd.silent_count == silent


# --- an inquiry -------------------------------------------------------------------------------------

A, B, C, D = ("a" * 16, "b" * 16, "c" * 16, "d" * 16)
WORLD = {A: 1, B: 1, C: 1, D: 1}


def inquiry() -> Inquiry:
    return Inquiry(9, 4, 0, Suspect(A, 0, 6, 30.0, 95.0, False), due_at=100.0 + ANSWER_TIMEOUT_S)


def answer(name: str, told: Sequence[RankStack] = (), no: int = 9, **fields: object) -> Stacks:
    return Stacks(cycle_id=4, incarnation=name, inquiry=no, stacks=tuple(told), **fields)  # type: ignore[arg-type]


def test_an_inquiry_is_complete_when_all_have_answered_or_time_is_over() -> None:
    asked = inquiry()
    for rank, name in enumerate((A, B, C)):
        asked.take(answer(name, [ranks([rank], ALL_REDUCE)]))
    assert not asked.is_complete(tuple(WORLD), 100.0)
    assert asked.is_complete(tuple(WORLD), 100.0 + ANSWER_TIMEOUT_S)
    asked.take(answer(D, [ranks([3], LOADER)]))
    assert asked.is_complete(tuple(WORLD), 100.0)


def test_an_answer_to_another_inquiry_counts_for_nothing_and_the_first_of_two_stands() -> None:
    asked = inquiry()
    asked.take(answer(A, [ranks([0], ALL_REDUCE)], no=8))
    assert asked.answers == {}
    asked.take(answer(A, [ranks([0], ALL_REDUCE)]))
    asked.take(answer(A, [ranks([0], LOADER)]))
    assert asked.answers[A].stacks[0].stack == ALL_REDUCE


def test_the_node_of_the_odd_rank_is_blamed_with_rank_step_and_stack() -> None:
    asked = inquiry()
    for rank, name in enumerate((A, B, C)):
        asked.take(answer(name, [ranks([rank], ALL_REDUCE)]))
    asked.take(answer(D, [ranks([3], LOADER, step=5)]))
    found = asked.judge(WORLD)
    assert isinstance(found, Hang)
    assert (found.blamed, found.rank, found.step) == (D, 3, 5)
    assert found.stack.startswith("_next_data (data/dataloader.py:700) < __next__")
    assert found.reason.startswith("no progress for 30.0 s after step 6: 3 ranks wait in all_reduce")


def test_a_node_whose_stacks_fit_into_no_record_does_not_hide_those_of_others() -> None:
    told, depth = trim([ranks([rank], ALL_REDUCE, step=10**6) for rank in range(3, 303)])
    asked = inquiry()
    asked.take(answer(D, told, depth=depth))
    for rank, name in enumerate((A, B, C)):
        asked.take(answer(name, [ranks([rank], LOADER)]))
    found = asked.judge({**WORLD, D: 300})
    assert isinstance(found, Hang)
    assert "ranks 0, 1, 2 are in __next__, called at train.py:33" in found.reason


def test_no_node_is_blamed_without_a_majority_or_where_two_nodes_are_odd() -> None:
    split = inquiry()
    for rank, name in enumerate(WORLD):
        split.take(answer(name, [ranks([rank], ALL_REDUCE if rank < 2 else LOADER)]))
    found = split.judge(WORLD)
    assert isinstance(found, Hang)
    assert (found.blamed, found.rank, found.step) == (None, 0, 7)
    several = inquiry()
    for rank, name in enumerate(WORLD):
        stack = {0: LOADER, 1: (MAIN,)}.get(rank, ALL_REDUCE)
        told = [ranks([2 * rank, 2 * rank + 1], ALL_REDUCE)] if rank > 1 else [ranks([2 * rank], stack)]
        several.take(answer(name, told))
    found = several.judge(WORLD)
    assert isinstance(found, Hang)
    assert found.odd.odd_ranks == (0, 2)
    assert found.blamed is None


def test_a_paused_rank_anywhere_is_no_hang_and_ends_the_inquiry() -> None:
    asked = inquiry()
    asked.take(answer(C, paused=((2, "checkpoint"),)))
    assert asked.is_complete(tuple(WORLD), 100.0)
    assert asked.judge(WORLD) == NoHang("a pause was announced, rank 2: checkpoint")


def test_a_rank_that_moves_is_no_hang_and_ends_the_inquiry() -> None:
    asked = inquiry()
    asked.take(answer(B, moving=(1, 5)))
    assert asked.is_complete(tuple(WORLD), 100.0)
    assert asked.judge(WORLD) == NoHang("other ranks make progress: 1, 5")


def test_stacks_that_were_cut_differently_are_compared_as_far_as_both_go() -> None:
    asked = inquiry()
    for rank, name in enumerate((A, B, C)):
        asked.take(answer(name, [ranks([rank], ALL_REDUCE[:2] if rank else ALL_REDUCE)], depth=2 if rank else 12))
    asked.take(answer(D, [ranks([3], LOADER)]))
    found = asked.judge(WORLD)
    assert isinstance(found, Hang)
    assert found.blamed == D


def test_a_world_in_which_no_node_answers_is_over_and_no_node_is_blamed() -> None:
    found = inquiry().judge(WORLD)
    assert isinstance(found, Hang)
    assert found.blamed is None
    assert found.step == 6
    assert "4 ranks did not answer" in found.reason
