"""Updates on the page, in a real browser: shown if there are any, and what went wrong stands out."""

from __future__ import annotations

from ft_rendezvous.core.update_notes import ReportedUpdate
from ft_rendezvous.protocol import journal
from tests.state.page.browser import Page, Server
from tests.state.page.story import Story, eventful
from tests.state.update_story import failed, plain, retried


def report(story: Story, *told: ReportedUpdate, merged: int = 0) -> None:
    node = story.node(0)
    story.tell(
        journal.UpdatesReported(
            cycle_id=story.cycle_id,
            incarnation=node.incarnation,
            node=node.name,
            updates=merged + len(told),
            failed=sum(each.outcome == "failed" for each in told),
            retried=sum(each.attempts > 1 for each in told),
            spent_s=1.25 * merged + sum(each.duration_s for each in told),
            lost_s=sum(each.lost_s for each in told),
            told=told,
        )
    )


def show(page: Page, server: Server, width: int = 1280, height: int = 800) -> Story:
    story = eventful(began_ago_s=600)
    server.send(*story.lines)
    story.on_line = server.send
    page.open(server.url, width=width, height=height)
    page.wait_text("run-name", story.run_id)
    page.wait_kinds(active=8, standby=2)
    return story


def rows(page: Page) -> list[list[str]]:
    return [text.splitlines() for text in page.all("#update-list li")]


def test_a_run_without_updates_shows_none_and_the_first_brings_them_up(page: Page, server: Server) -> None:
    story = show(page, server)
    assert not page.at("updates").is_displayed()
    report(story, plain(40), merged=3)
    page.wait_text("updates-title", "Updates (4)")
    assert page.at("updates").is_displayed()
    assert page.text("updates-sums") == "5.0 s in updates"
    ((_, mark, outcome, facts, detail),) = rows(page)
    assert (mark, outcome) == ("✓", "version 40 completed")
    assert facts.startswith("4 of 4 parties · 1.3 s · cycle ")
    assert detail == "pause 12 ms, transfer 1.2 s"
    assert not [each for each in page.events() if "pdate" in each], "what goes well is routine"


def test_what_failed_or_was_retried_stands_out(page: Page, server: Server) -> None:
    story = show(page, server)
    report(story, retried(41))
    report(story, failed(42))
    for version in range(50, 80):
        report(story, plain(version))
    page.wait_text("updates-title", "Updates (32)")
    page.wait_text("updates-sums", "1 min 9 s lost to failed attempts · 1 failed · 2 retried")
    shown = rows(page)
    assert len(shown) == 12
    assert [row[2] for row in shown[-2:]] == ["version 42 failed", "version 41 completed"]
    assert [row[1] for row in shown[-3:]] == ["✓", "✕", "!"]
    assert "2 attempts · 1 min 1 s lost" in shown[-1][3]
    assert shown[-2][4].endswith("gen-7 and 4 more; pause on gen-0: ConnectionError | refused")
    told = page.wait("events", lambda: [each for each in page.events() if "pdate" in each] or None)
    assert len(told) == 2
    assert any(
        "1 failed, 1 retried, 8.0 s lost: version 42 failed in 2 attempts, 0 of 3 parties" in each for each in told
    )


def test_updates_fit_on_a_phone(page: Page, server: Server) -> None:
    story = show(page, server, width=390, height=800)
    report(story, failed(42))
    page.wait_text("updates-title", "Updates (1)")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
