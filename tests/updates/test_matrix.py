"""Every step x every party x every fault, with async and with blocking methods."""

from __future__ import annotations

from itertools import product

import pytest

from tests.updates.rig import NAMES, STEPS, Cell, Rig, find_faults

CELLS = [Cell(*each) for each in product(STEPS, NAMES, ("raises", "hangs", "cancelled"), (False, True), (2, 3))]
TRIES = 3
"""The machine may stand still for a moment. A call that blocks the loop does so each time."""


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_nothing_is_half_done(cell: Cell) -> None:
    for _ in range(TRIES):
        rig = Rig(cell)
        rig.run()
        faults = find_faults(rig)
        if faults != {"the event loop never pauses"}:
            break
    assert faults == set()
