"""In a run without groups, whatever is journaled belongs to the newest cycle."""

from __future__ import annotations

from ft_rendezvous.protocol.journal import CycleOpened, Entry, NodeFenced, NodeFinished
from tests.sim.world import World


def test_a_node_that_is_fenced_or_finishes_is_journaled_in_the_newest_cycle() -> None:
    """Also while the next cycle is open and the node still belongs to the last world."""
    cycles: list[tuple[int, int, int]] = []

    for seed in (21, 27):
        world = World(seed, rules={})
        opened: list[int] = []

        def look(entry: Entry, seed: int = seed, opened: list[int] = opened) -> None:
            if isinstance(entry, CycleOpened):
                opened.append(entry.cycle_id)
            if isinstance(entry, NodeFenced | NodeFinished):
                cycles.append((seed, entry.cycle_id, opened[-1]))

        world.on_entry = look
        world.run()
    assert len(cycles) > 4
    assert [each for each in cycles if each[1] != each[2]] == []
