"""Progress on the page, in a real browser: shown if hangs are looked for, with the slowest ranks first."""

from __future__ import annotations

import msgspec
from selenium.webdriver.common.by import By

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.journal import ToldProgress
from tests.state.page.browser import Page, Server
from tests.state.page.story import Story, eventful

TITLE = "Slowest ranks; a rank is late after 2 min 0 s"


def show(page: Page, server: Server, story: Story) -> Story:
    """The run until now; what it tells from now on comes to the page."""
    server.send(*story.lines)
    story.on_line = server.send
    story.catch_up()
    page.open(server.url)
    page.wait_text("run-name", story.run_id)
    return story


def look(story: Story, **progress: ToldProgress) -> None:
    """The coordinator looks; `r3` is the node of infra rank 3."""
    told = {story.node(int(name[1:])).incarnation: each for name, each in progress.items()}
    live = len(story.live)
    looked = journal.Looked(cycle_id=story.cycle_id, live=live, oldest_s=0.6, operations=90 * story.state.event_id)
    story.tell(msgspec.structs.replace(looked, progress=told, late_after_s=120))


def slow_ranks(page: Page) -> list[str]:
    return page.all("#slow-list b")


def column(page: Page, number: int) -> list[str]:
    return page.all(f"#progress-table tbody :nth-child({number}):is(th, td)")


def press(page: Page, selector: str) -> None:
    page.driver.find_element(By.CSS_SELECTOR, selector).click()


def test_a_run_that_does_not_look_for_hangs_shows_no_progress(page: Page, server: Server) -> None:
    story = show(page, server, eventful())
    story.look()
    page.wait_kinds(active=8, standby=2)
    assert not page.at("progress").is_displayed()


def test_the_slowest_ranks_and_a_row_for_each_node_are_shown_and_follow_the_run(page: Page, server: Server) -> None:
    story = show(page, server, eventful())
    look(story, r0=ToldProgress(1841, 0, 3), r1=ToldProgress(1840, 71, 9), r2=ToldProgress(None, 2, 17))
    page.wait_text("progress-title", TITLE)
    page.wait("the slowest ranks", lambda: slow_ranks(page) == ["rank 9", "rank 17", "rank 3"] or None)
    page.wait("a row for each node", lambda: column(page, 3) == ["9", "17", "3"] or None)
    assert column(page, 1) == [story.node(number).name for number in (1, 2, 0)]
    assert column(page, 4) == ["1,840", "", "1,841"]
    assert column(page, 5)[0].startswith("1 min 1"), "71 s ago, and it grows"
    assert len(page.all('#progress-table [data-old="true"]')) == 1, "more than half of what makes a rank late"
    look(story, r0=ToldProgress(1850, 0, 3), r1=ToldProgress(1849, 1, 9))
    page.wait("the next look", lambda: slow_ranks(page) == ["rank 9", "rank 3"] or None)
    page.wait("the next look in the table", lambda: column(page, 4) == ["1,849", "1,850"] or None)


def test_ages_grow_between_two_looks(page: Page, server: Server) -> None:
    look(show(page, server, eventful()), r1=ToldProgress(1840, 30, 9))
    page.wait("an age", lambda: column(page, 5))
    first = column(page, 5)
    page.wait("it grows", lambda: column(page, 5) != first or None)


def test_a_slow_rank_leads_to_its_node(page: Page, server: Server) -> None:
    story = show(page, server, eventful())
    look(story, r1=ToldProgress(1840, 71, 9))
    page.wait("the slowest rank", lambda: slow_ranks(page) == ["rank 9"] or None)
    press(page, "#slow-list button")
    page.wait_text("node-name", story.node(1).name)
    page.wait("its progress", lambda: page.details().get("progress", "").startswith("step 1,840, 1 min 1") or None)
    assert page.details()["progress"].endswith("ago, rank 9")


def test_the_table_of_many_nodes_is_closed_until_it_is_asked_for(page: Page, server: Server) -> None:
    story = Story(nnodes="40", began_ago_s=60)
    story.begin(40, 40)
    show(page, server, story)
    look(story, **{f"r{number}": ToldProgress(1841, number % 3, 8 * number) for number in range(40)})
    page.wait("the slowest ranks", lambda: len(slow_ranks(page)) == 5 or None)
    assert not page.at("progress-table").is_displayed()
    press(page, "#progress-all summary")
    page.wait("all rows", lambda: len(column(page, 1)) == 40 or None)


def test_progress_is_gone_when_the_run_is_over(page: Page, server: Server) -> None:
    story = show(page, server, eventful())
    look(story, r1=ToldProgress(1840, 71, 9))
    page.wait("the slowest rank", lambda: slow_ranks(page) == ["rank 9"] or None)
    story.end(VerdictKind.SUCCEEDED)
    page.wait("the end", lambda: not page.at("progress").is_displayed() or None)
