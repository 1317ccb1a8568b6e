"""The benchmark of mass failure times the right work, and a coordinator that loses reports is caught."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from benchmarks import failing
from benchmarks.measure import OURS, WrongResult
from ft_rendezvous.core import blame
from ft_rendezvous.core.blame import Ledger

COUNT = 100


@pytest.mark.parametrize("has_infra_ranks", [True, False])
def test_both_contenders_take_in_every_failure(has_infra_ranks: bool) -> None:
    with failing._prepare(COUNT, has_infra_ranks) as contenders:
        assert contenders.keys() == {OURS, failing.READING}
        assert all(sample() > 0 for sample in contenders.values())


def test_a_ledger_that_takes_the_last_failure_for_the_first_is_caught() -> None:
    with (
        patch.object(blame, "first_failure", lambda notes: notes[-1]),
        failing._prepare(COUNT, has_infra_ranks=True) as contenders,
        pytest.raises(WrongResult, match="another failure"),
    ):
        contenders[OURS]()


def test_a_coordinator_that_loses_a_failure_is_caught() -> None:
    note = Ledger.note
    with (
        patch.object(Ledger, "note", lambda self, failure: self.count_notes() < 50 and note(self, failure)),
        failing._prepare(COUNT, has_infra_ranks=True) as contenders,
        pytest.raises(WrongResult, match="failures were lost"),
    ):
        contenders[OURS]()
