"""How far the workers of each node are: in the records, in `ftr status` and in the metrics."""

from __future__ import annotations

import msgspec

from ft_rendezvous.cli.state_blocks import Grid, blocks_of
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.journal import ToldProgress
from ft_rendezvous.state.model.events import encode_state_line
from ft_rendezvous.state.model.records import NodeRole, Run
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.sources import Picture
from tests.state.test_fold import Story, training
from tests.state.web.servers import live_run_of
from tests.state.web.test_metrics import scrape, value


def look(story: Story, others: ToldProgress | None = None, **progress: ToldProgress) -> None:
    told = {story.names[int(name[1:])]: each for name, each in progress.items()}
    looked = journal.Looked(
        cycle_id=1, live=3, oldest_s=0.1, operations=9, progress=told, others=others, late_after_s=90
    )
    story.tell(looked, after_s=100.0)


def run_of(story: Story) -> Run:
    run = view_run(story.state, story.now_ns)
    assert run is not None
    return run


def grids(story: Story) -> dict[str, Grid]:
    run = run_of(story)
    picture = Picture(run=run, cycles=view_cycles(story.state, story.now_ns), nodes=view_nodes(story.state))
    return {block.title: block for block in blocks_of(picture, story.now_ns) if isinstance(block, Grid)}


def test_a_node_has_its_step_its_slowest_rank_and_the_time_of_its_progress() -> None:
    story = training()
    assert {(node.step, node.slowest_rank, node.last_progress_ns) for node in view_nodes(story.state)} == {
        (None, None, None)
    }
    look(story, n0=ToldProgress(1841, 0, 3), n1=ToldProgress(1840, 60, 9))
    found = {
        node.incarnation: (node.step, node.slowest_rank, node.last_progress_ns) for node in view_nodes(story.state)
    }
    assert found == {
        story.names[0]: (1841, 3, story.now_ns),
        story.names[1]: (1840, 9, story.now_ns - 60 * NS),
        story.names[2]: (None, None, None),
    }


def test_nodes_that_are_not_named_have_come_as_far_as_is_said_of_all_of_them() -> None:
    """But not nodes without a place. And of no node an old step is kept: it would seem to wait for ever."""
    story = training()
    look(story, others=ToldProgress(1839, 2), n0=ToldProgress(1800, 60, 3))
    found = {node.incarnation: (node.step, node.slowest_rank, node.role) for node in view_nodes(story.state)}
    assert found == {
        story.names[0]: (1800, 3, NodeRole.ACTIVE),
        story.names[1]: (1839, None, NodeRole.ACTIVE),
        story.names[2]: (None, None, NodeRole.STANDBY),
    }
    look(story, n1=ToldProgress(2000, 0, 9))
    found_later = {node.incarnation: (node.step, node.last_progress_ns) for node in view_nodes(story.state)}
    assert found_later == {
        story.names[0]: (None, None),
        story.names[1]: (2000, story.now_ns),
        story.names[2]: (None, None),
    }


def test_the_run_names_its_slowest_ranks_and_when_a_rank_is_late() -> None:
    story = training()
    assert (run_of(story).slowest, run_of(story).late_after_s) == ((), None)
    look(story, n0=ToldProgress(1841, 0, 3), n1=ToldProgress(1840, 60, 9))
    run = run_of(story)
    assert [(slow.rank, slow.incarnation, slow.step) for slow in run.slowest] == [
        (9, story.names[1], 1840),
        (3, story.names[0], 1841),
    ]
    assert run.late_after_s == 90


def test_of_ranks_that_wait_for_as_long_the_one_with_the_lower_step_comes_first() -> None:
    story = training()
    look(story, n0=ToldProgress(1841, 5, 3), n1=ToldProgress(1840, 5, 9))
    assert [slow.rank for slow in run_of(story).slowest] == [9, 3]


def test_status_has_a_column_and_the_slowest_ranks_only_where_progress_is_watched() -> None:
    story = training()
    assert "progress" not in grids(story)["nodes"].headings
    assert not [title for title in grids(story) if "slowest" in title]
    look(story, n0=ToldProgress(1841, 0, 3), n1=ToldProgress(None, 60, 9))
    grid = grids(story)["nodes"]
    column = grid.headings.index("progress")
    assert [row[column] for row in grid.rows] == ["step 1,841, just now, rank 3", "1 min 00 s ago, rank 9", ""]
    assert list(grids(story)["slowest ranks; a rank is late after 1 min 30 s"].rows) == [
        ("9", name_of(story, 1), "", "1 min 00 s ago"),
        ("3", name_of(story, 0), "1,841", "just now"),
    ]


def name_of(story: Story, number: int) -> str:
    return next(node.name for node in view_nodes(story.state) if node.incarnation == story.names[number])


def test_a_log_that_does_not_know_ranks_is_read() -> None:
    line = b'{"kind":"Looked","cycle_id":1,"live":3,"oldest_s":0.1,"operations":9,"progress":{"a":[7,2]}}'
    assert msgspec.json.decode(line, type=journal.Looked).progress == {"a": ToldProgress(7, 2, None)}


def test_metrics_have_step_age_and_slowest_rank_per_node() -> None:
    story = training()
    assert not [
        name
        for name in scrape(live_run_of([encode_state_line(story.state)]), story.now_ns)
        if name.startswith("ft_node_")
    ]
    look(story, n0=ToldProgress(1841, 0, 3), n1=ToldProgress(None, 60))
    families = scrape(live_run_of([encode_state_line(story.state)]), story.now_ns + 2 * NS)
    names = {node.incarnation: node.name for node in view_nodes(story.state)}
    first, second = names[story.names[0]], names[story.names[1]]
    assert value(families, "ft_node_step", node=first) == 1841
    assert value(families, "ft_node_progress_age_seconds", node=first) == 2
    assert value(families, "ft_node_progress_age_seconds", node=second) == 62
    assert [sample.labels["node"] for sample in families["ft_node_step"].samples] == [first]
    assert value(families, "ft_node_slowest_rank", node=first) == 3
    assert [sample.labels["node"] for sample in families["ft_node_slowest_rank"].samples] == [first]
    assert value(families, "ft_hang_timeout_seconds") == 90
