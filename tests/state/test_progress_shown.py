"""How far the workers of each node are: in the records, in `ftr status` and in the metrics."""

from __future__ import annotations

from ft_rendezvous.cli.state_blocks import Grid, blocks_of
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import encode_state_line
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.sources import Picture
from tests.state.test_fold import Story, training
from tests.state.web.servers import live_run_of
from tests.state.web.test_metrics import scrape, value


def look(story: Story, **progress: tuple[int | None, int]) -> None:
    told = {story.names[int(name[1:])]: each for name, each in progress.items()}
    story.tell(journal.Looked(cycle_id=1, live=3, oldest_s=0.1, operations=9, progress=told), after_s=100.0)


def grid_of_nodes(story: Story) -> Grid:
    run = view_run(story.state, story.now_ns)
    assert run is not None
    picture = Picture(run=run, cycles=view_cycles(story.state, story.now_ns), nodes=view_nodes(story.state))
    return next(
        block for block in blocks_of(picture, story.now_ns) if isinstance(block, Grid) and "nodes" in block.title
    )


def test_a_node_has_its_step_and_the_time_of_its_progress() -> None:
    story = training()
    assert {(node.step, node.last_progress_ns) for node in view_nodes(story.state)} == {(None, None)}
    look(story, n0=(1841, 0), n1=(1840, 60))
    found = {node.incarnation: (node.step, node.last_progress_ns) for node in view_nodes(story.state)}
    assert found == {
        story.names[0]: (1841, story.now_ns),
        story.names[1]: (1840, story.now_ns - 60 * NS),
        story.names[2]: (None, None),
    }


def test_status_has_a_column_only_where_progress_is_watched() -> None:
    story = training()
    assert "progress" not in grid_of_nodes(story).headings
    look(story, n0=(1841, 0), n1=(None, 60))
    grid = grid_of_nodes(story)
    column = grid.headings.index("progress")
    assert [row[column] for row in grid.rows] == ["step 1,841, 0 ms ago", "1 min 00 s ago", ""]


def test_metrics_have_step_and_age_per_node() -> None:
    story = training()
    assert not [
        name
        for name in scrape(live_run_of([encode_state_line(story.state)]), story.now_ns)
        if name.startswith("ft_node_")
    ]
    look(story, n0=(1841, 0), n1=(None, 60))
    families = scrape(live_run_of([encode_state_line(story.state)]), story.now_ns + 2 * NS)
    names = {node.incarnation: node.name for node in view_nodes(story.state)}
    first, second = names[story.names[0]], names[story.names[1]]
    assert value(families, "ft_node_step", node=first) == 1841
    assert value(families, "ft_node_progress_age_seconds", node=first) == 2
    assert value(families, "ft_node_progress_age_seconds", node=second) == 62
    assert [sample.labels["node"] for sample in families["ft_node_step"].samples] == [first]
