"""Seeds that showed a mistake about lifelines."""

from __future__ import annotations

import pytest

from tests.sim.world import run_seed


@pytest.mark.parametrize("seed", [992])
def test_a_node_that_a_firewall_refuses_hurries_until_the_host_has_seen_the_hang_up(seed: int) -> None:
    result = run_seed(seed)
    assert result.violation is None, "\n".join(result.transcript[-20:])


@pytest.mark.parametrize("seed", [21465, 22410, 22817])
def test_a_slow_network_that_has_just_healed_explains_a_lost_node(seed: int) -> None:
    result = run_seed(seed)
    assert result.violation is None, "\n".join(result.transcript[-20:])
