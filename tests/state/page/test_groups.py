"""Replica groups on the page, in a real browser: what each does, and which nodes are in it."""

from __future__ import annotations

import time

from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.run_state import NS
from tests.state.group_story import GroupStory, training
from tests.state.page.browser import Page, Server
from tests.state.page.story import eventful

AGO_S = 600.0


def show(page: Page, server: Server, story: GroupStory, **options: object) -> None:
    """Send a story up to now, open the page, and send what comes as it is told."""
    look(story)
    server.send(*story.lines)
    story.on_line = server.send
    page.open(server.url, **options)  # type: ignore[arg-type]
    page.wait_text("run-name", "hsdp-30b")


def look(story: GroupStory) -> None:
    """The coordinator looks, at this very moment."""
    story.now_ns = max(story.now_ns, time.time_ns())
    live = len(story.roster.members)
    story.tell(journal.Looked(cycle_id=story.common_id, live=live, oldest_s=0.5, operations=100))


def begun(spares: int = 1) -> GroupStory:
    story = training(spares, began_ns=time.time_ns() - round(AGO_S * NS))
    story.wait(300)
    return story


def waiting() -> GroupStory:
    """Group 1 has restarted once, group 2 has a spare in it, and group 1 waits for a node."""
    story = begun()
    story.open(story.fail(3, "exit code 1: RuntimeError: boom")[1], 1)
    story.arrive(2, 3, after_s=2.0)
    story.seal_group(1, 2, 3)
    story.open(story.lose(5, after_s=30.0), 2)
    story.arrive(4, after_s=1.0)
    story.seal_group(2, 4, 6)
    story.open(story.lose(2, after_s=60.0), 1)
    story.arrive(3, after_s=1.0)
    story.lacks(1, "1 of 2 nodes have arrived")
    return story


def rows(page: Page) -> list[list[str]]:
    return [text.splitlines() for text in page.all("#group-list li")]


def test_groups_are_shown_with_status_and_cycle(page: Page, server: Server) -> None:
    show(page, server, waiting())
    page.wait_text("groups-title", "Groups (2 of 3 train)")
    first, second, third = rows(page)
    assert first[:3] == ["group 0", "▶", "RUNNING"]
    assert first[3] == "cycle 1 · 2 of 2 nodes"
    assert second[:3] == ["group 1", "…", "WAITING"]
    assert second[3].startswith("cycle 4 · 1 of 2 nodes · 2 restarts · ")
    assert second[4].startswith(
        "lost infra rank 2 at 10.0.0.12 pid 4202 (rank 0); waiting for 1 of 2 nodes: infra rank 2, last"
    )
    assert third[3].startswith("cycle 3 · 2 of 2 nodes · 1 restart · ")
    assert page.text("status-word") == "RUNNING"
    assert page.text("status-detail").startswith("4 nodes train, in 2 of 3 groups; group 1 restarts")
    assert page.all("#cycle-list .of-group") == ["group 1", "group 2", "group 1", "all groups"]


def test_nodes_are_drawn_by_group(page: Page, server: Server) -> None:
    show(page, server, begun())
    page.wait_text("nodes-title", "Nodes (7 in 3 groups)")
    page.wait_drawn(7)
    details = page.pick("infra 3")
    assert (details["group"], details["group rank"], details["global ranks"]) == ("1", "1", "8 to 15")
    assert "group" not in page.pick("infra 6"), "a spare is in no group"
    assert page.search("group 2") == [
        "infra rank 4 at 10.0.0.14 pid 4204, rank 0",
        "infra rank 5 at 10.0.0.15 pid 4205, rank 1",
    ]
    page.search("")
    page.run("document.getElementById('domains').open = true")
    page.wait("counts by group", lambda: page.all("#domain-table tbody th") or None)
    assert page.text("domains-title") == "Counts by group"
    assert page.all("#domain-table tbody th") == ["group 0", "group 1", "group 2", "no group"]


def test_a_group_that_is_pressed_shows_its_nodes_alone(page: Page, server: Server) -> None:
    show(page, server, begun())
    page.wait_text("groups-title", "Groups (all 3 train)")
    page.run("document.querySelector('#group-list [data-group=\"1\"]').click()")
    page.wait_text("found", "2 nodes:")
    assert [text.split(" at ")[0] for text in page.all("#found button")] == ["infra rank 2", "infra rank 3"]
    page.run("document.querySelector('#group-list [data-group=\"1\"]').click()")
    page.wait("all nodes again", lambda: not page.text("found") or None)


def test_a_group_restarts_while_one_looks_and_the_others_train_on(page: Page, server: Server) -> None:
    story = begun()
    show(page, server, story)
    page.wait_kinds(active=6, standby=1)
    story.open(story.lose(5), 2)
    page.wait_text("groups-title", "Groups (2 of 3 train)")
    page.wait_kinds(active=4, standby=1, awaited=1, dead=1)
    assert page.text("status-word") == "RUNNING"
    look(story)
    story.arrive(4)
    story.seal_group(2, 4, 6)
    page.wait_text("groups-title", "Groups (all 3 train)")
    page.wait_kinds(active=6)
    assert page.pick("infra 6")["group"] == "2"
    page.wait("the seal is told", lambda: any("Cycle 2 of group 2 sealed" in each for each in page.events()) or None)


def test_a_dissolved_group_and_the_end(page: Page, server: Server) -> None:
    story = begun(spares=0)
    show(page, server, story)
    story.open(story.lose(5), 2)
    story.arrive(4)
    story.dissolve(2, "group 1 needs its nodes")
    page.wait("group 2 is dissolved", lambda: rows(page)[2][2] == "DISSOLVED" or None)
    assert rows(page)[2][4] == "group 1 needs its nodes"
    page.wait("it is told", lambda: any("Group 2 is dissolved" in each for each in page.events()) or None)
    look(story)
    story.finish(0, 1, 2, 3)
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.SUCCEEDED)))
    page.wait_text("status-word", "SUCCEEDED")
    page.wait("groups have finished", lambda: [row[2] for row in rows(page)][:2] == ["FINISHED"] * 2 or None)
    assert page.text("training") == "4"


def test_a_run_without_groups_shows_none(page: Page, server: Server) -> None:
    story = eventful(began_ago_s=600)
    server.send(*story.lines)
    page.open(server.url)
    page.wait_text("run-name", story.run_id)
    page.wait_kinds(active=8, standby=2)
    assert not page.at("groups").is_displayed()
    assert page.all("#cycle-list .of-group:not([hidden])") == []
    assert "domains" in page.text("nodes-title")
    assert "group" not in page.pick("infra 0")


def test_groups_fit_on_a_phone(page: Page, server: Server) -> None:
    show(page, server, waiting(), width=390, height=800)
    page.wait_text("groups-title", "Groups")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
