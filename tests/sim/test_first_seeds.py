"""A few seeds in this very process, for the fast tests; `test_sim` runs thousands."""

from __future__ import annotations

import pytest

from tests.sim import checkers
from tests.sim.world import run_seed


@pytest.mark.parametrize("seed", range(40))
def test_a_seed_breaks_no_guarantee(seed: int) -> None:
    result = run_seed(seed, checks=checkers.ALL)
    assert result.violation is None, "\n".join([f"seed {seed} violates {result.violation}", *result.transcript])
