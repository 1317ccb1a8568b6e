"""The page in a real browser: what a user reads, sees change and can do."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from ft_rendezvous.core.model import NodesLost, Verdict, VerdictKind
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.view import view_run
from tests.state.page.browser import Page, Server
from tests.state.page.story import Story, crowded, eventful
from tests.state.recording import record_seed

CELL = (8, 26)
"""A point in the first node of the grid: below the domain's name."""


def show(page: Page, server: Server, story: Story, **options: object) -> None:
    """Send a story so far, open the page, and send what comes as it is told."""
    if story.state.verdict is None:
        story.catch_up()
        story.look()
    server.send(*story.lines)
    story.on_line = server.send
    page.open(server.url, **options)  # type: ignore[arg-type]
    page.wait_text("run-name", story.run_id)


# --- the head -----------------------------------------------------------------------------------------


def test_how_a_run_stands_is_told_in_one_glance(page: Page, server: Server) -> None:
    show(page, server, eventful(began_ago_s=7200))
    assert page.wait_text("status-word", "RUNNING") == "RUNNING"
    assert page.text("status-detail") == "8 nodes train in cycle 4"
    page.wait_text("line", "live")
    assert page.text("age") == "2 h 0 min"
    assert (page.text("training"), page.text("training-more")) == ("8", "of 8 wanted")
    assert (page.text("spares"), page.text("spares-more")) == ("2", "2 standby, 0 hot")
    assert page.text("lost") == "15 s"
    assert "0.2 %" in page.text("lost-more")
    assert page.all("#cause-list li") == ["7.9 s workers failed, 2×", "7.1 s nodes lost, 1×"]
    assert page.driver.title == "▶ RUNNING · llama-70b"


def test_nodes_that_gather_are_counted(page: Page, server: Server) -> None:
    story = Story(nnodes="3:4")
    show(page, server, story)
    page.wait_text("status-word", "INITIALIZING")
    page.wait_text("no-nodes", "No node has come yet")
    story.open()
    story.join(0)
    page.wait_text("status-word", "SCHEDULING")
    story.arrive(story.live)
    page.wait_text("status-detail", "waiting for 2 of 3 nodes")
    page.wait_text("training-more", "1 arrived of 3 wanted")
    page.wait_kinds(arrived=1)


@pytest.mark.parametrize(
    ("kind", "word", "status"),
    [
        (VerdictKind.SUCCEEDED, "SUCCEEDED", "FINISHED"),
        (VerdictKind.FAILED, "FAILED", "ERRORED"),
        (VerdictKind.CANCELLED, "CANCELLED", "ABORTED"),
    ],
)
def test_a_verdict_is_shown_when_it_falls(
    page: Page, server: Server, kind: VerdictKind, word: str, status: str
) -> None:
    story = eventful(began_ago_s=600)
    show(page, server, story)
    page.wait_text("status-word", "RUNNING")
    story.catch_up()
    story.end(kind, "loss is NaN" if kind is VerdictKind.FAILED else "", is_retryable=kind is VerdictKind.CANCELLED)
    assert page.wait_text("status-word", word) == word
    assert page.at("status").get_attribute("data-status") == status
    page.wait_text("line", "the run is over")
    page.wait_text("status-detail", "the run is over")
    assert ("loss is NaN" in page.text("status-detail")) == (kind is VerdictKind.FAILED)
    assert ("another start may do better" in page.text("status-detail")) == (kind is VerdictKind.CANCELLED)
    assert page.text("age-label") == "ran for"
    age = page.text("age")
    page.wait("the nodes have gone", lambda: "dead" not in page.kinds() and "active" not in page.kinds())
    assert page.kinds() == ({"finished": 8, "left": 2} if kind is VerdictKind.SUCCEEDED else {"left": 10})
    assert page.text("age") == age, "a run that is over does not get older"


@pytest.mark.parametrize("is_training", [True, False], ids=["it trained", "it restarted"])
def test_the_share_of_lost_time_counts_up_to_the_end_also_in_a_tab_that_is_not_seen(
    page: Page, server: Server, is_training: bool
) -> None:
    """A tab in the background reads nothing, and the server is gone when it is looked at again."""
    story = Story(began_ago_s=26, nnodes="4:5")
    story.begin(5, 4)
    story.wait(15)
    story.fail(1)
    story.recover(4, 5.0)
    show(page, server, story)
    page.wait_text("lost", "5.0 s")
    page.run("Object.defineProperty(document, 'hidden', { value: true })")
    if not is_training:
        story.fail(2)
        page.wait(
            "the failure is told", lambda: any("Workers failed on infra rank 2" in each for each in page.events())
        )
    story.wait(51)
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.SUCCEEDED if is_training else VerdictKind.FAILED)))
    page.wait_text("line", "the run is over")
    run = view_run(story.state, story.state.time_ns)
    assert run is not None
    assert (run.lost_s > 50, run.trained_s > 50) == (not is_training, is_training)
    whole_s = run.lost_s + run.trained_s
    page.wait_text("lost", "5.0 s" if is_training else f"{round(run.lost_s)} s")
    percent = f"{100 * run.lost_s / whole_s:.1f}" if is_training else f"{100 * run.lost_s / whole_s:.0f}"
    assert page.text("lost-more") == f"{percent} % of 1 min {round(whole_s) - 60} s"
    assert page.run("return document.hidden")


# --- live ---------------------------------------------------------------------------------------------


def test_a_node_is_killed_and_a_spare_takes_its_rank_while_one_looks(page: Page, server: Server) -> None:
    story = Story(began_ago_s=60, nnodes="4:5")
    story.begin(5, 4)
    show(page, server, story)
    page.wait_kinds(active=4, standby=1)
    page.run("window.isTheSame = true")
    page.wait_drawn(5)
    before = page.pixel(*CELL)
    assert page.pick("infra 0")["group rank"] == "0"
    assert "ALIVE active" in page.text("node-body")

    story.silence(0)
    page.wait_kinds(active=3, standby=1, suspect=1)
    assert page.pixel(*CELL) != before
    story.lose(0)
    page.wait_kinds(awaited=3, hot_spare=1, dead=1)
    assert "DEAD was active" in page.text("node-body")
    assert page.details()["detail"] == "lost: no beat for 5 s"
    page.wait_text("status-word", "RESTARTING")
    page.wait_text("status-detail", "lost infra rank 0 at 10.0.0.1 pid 4000 (rank 0)")
    assert page.text("training") == "0"
    lost = page.text("lost")
    page.wait("time lost counts on", lambda: page.text("lost") != lost)

    story.arrive(story.live)
    story.seal(4)
    page.wait_kinds(active=4)
    page.wait_text("status-word", "RUNNING")
    page.wait_text("gone-title", "Gone (1)")
    spare = page.pick("rank 0")
    assert page.text("node-name") == "infra rank 4 at 10.0.0.5 pid 4004"
    assert (spare["group rank"], spare["global ranks"]) == ("0", "0 to 7")
    assert any("infra rank 0 at 10.0.0.1 pid 4000 was lost: no beat for 5 s." in each for each in page.events())
    placed = "Placement of cycle 2: 3 nodes keep their ranks, 1 node is new; spares cover any 0 nodes."
    page.wait("the placement in a sentence", lambda: any(placed in each for each in page.events()))
    assert not any("=" in each for each in page.events()), "log keys are for logs"
    assert page.run("return window.isTheSame"), "the page was loaded again"


def test_it_asks_at_most_once_a_second(page: Page, server: Server) -> None:
    story = Story(nnodes="4:5")
    story.begin(5, 4)
    show(page, server, story)
    page.wait_kinds(active=4, standby=1)
    list(page.requested())
    began = time.monotonic()
    for _ in range(200):
        story.look()
        story.silence(1)
        story.tell(journal.NodesHeard(cycle_id=1, incarnations=(story.node(1).incarnation,)))
        time.sleep(0.01)
    last = story.state.event_id
    page.wait("all of it is shown", lambda: page.at("main").get_attribute("data-event") == str(last))
    took_s = time.monotonic() - began
    asked = [url for url in page.requested() if url.endswith("/nodes")]
    assert 1 <= len(asked) <= took_s + 2


# --- cycles -------------------------------------------------------------------------------------------


def test_every_cycle_says_why_it_began_and_what_it_cost(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait("four cycles", lambda: len(page.all(".cycle")) == 4)
    assert page.all(".cycle .number") == ["4", "3", "2", "1"]
    assert page.all(".cycle .status") == ["RUNNING", "ERRORED", "ERRORED", "ERRORED"]
    assert page.all(".cycle .why") == [
        "workers failed on infra rank 1 at 10.0.0.2 pid 4001 (rank 8): signal SIGKILL (exit code -9)",
        "lost infra rank 5 at 10.0.0.6 pid 4005 (rank 5)",
        "workers failed on infra rank 3 at 10.0.0.4 pid 4003 (rank 24): exit code 1",
        "the run begins",
    ]
    phases = page.all(".cycle .phases")
    assert phases[1].startswith("7.1 s without training · open to seal 2.1 s · trained ")
    assert "RuntimeError: CUDA error" in page.all(".cycle .failure")[3]

    first = page.driver.find_elements(By.CSS_SELECTOR, ".cycle .row")[3]
    first.send_keys(Keys.ENTER)
    told = page.all(".cycle:last-child .more dd")
    assert "the coordinator" in told
    assert "exit code 1: RuntimeError: CUDA error: an illegal memory access was encountered" in told
    assert any("/scratch/logs/llama-70b/cycle_1/rank_24/stderr.log" in each for each in told)
    assert "1" in told, "the exit code"


def test_a_corrected_cause_is_shown(page: Page, server: Server) -> None:
    story = Story(began_ago_s=60, nnodes="4:5")
    story.begin(5, 4)
    story.wait(30)
    show(page, server, story)
    story.fail(1, "connection reset")
    page.wait("the first cause", lambda: page.all(".cycle .why")[0].startswith("workers failed on infra rank 1"))
    story.tell(journal.CauseCorrected(cycle_id=2, why=NodesLost((story.node(2).name,), (2,))))
    page.wait("the true cause", lambda: page.all(".cycle .why")[0].startswith("lost infra rank 2"))
    told = "The cause of cycle 2 is corrected: lost infra rank 2 at 10.0.0.3 pid 4002 (rank 2)."
    page.wait("a sentence", lambda: any(told in each for each in page.events()))
    story.arrive(story.live)
    story.seal(4)
    page.wait("the time is charged to it", lambda: any("nodes lost, 1×" in each for each in page.all("#cause-list li")))


def test_bars_share_one_time_axis(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait("four cycles", lambda: len(page.all(".cycle")) == 4)
    script = """return [...document.querySelectorAll('.cycle')].reverse().map((row) => {
        const box = row.querySelector('.phase.train').getBoundingClientRect(); return [box.left, box.right]})"""
    bars = page.run(script)
    for (_, right), (left, _) in pairwise(bars):
        assert abs(left - right) < 6, "one cycle begins where the one before it ended"
    assert bars[0][1] - bars[0][0] > bars[3][1] - bars[3][0], "the longer training has the longer bar"


def test_of_a_thousand_cycles_the_newest_are_shown_and_the_others_on_demand(page: Page, server: Server) -> None:
    story = Story(began_ago_s=86400, nnodes="2:3")
    story.begin(3, 2)
    for number in range(999):
        story.wait(80)
        story.fail(number % 2)
        story.recover(2, 2.0)
    show(page, server, story)
    page.wait_text("cycles-title", "Cycles (1000)")
    assert page.all(".cycle .number")[:3] == ["1000", "999", "998"]
    assert len(page.all(".cycle")) == 12
    assert page.text("older") == "Show 50 older (of 988)"
    page.at("older").click()
    assert len(page.all(".cycle")) == 62
    assert page.at("overview").is_displayed(), "all of them on one line"


# --- nodes --------------------------------------------------------------------------------------------


def test_a_node_is_found_by_infra_rank_by_address_and_by_rank(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait_kinds(active=8, standby=2)
    assert page.search("infra 8") == ["infra rank 8 at 10.0.0.9 pid 4008"]
    assert page.search("10.0.0.9") == ["infra rank 8 at 10.0.0.9 pid 4008"]
    # It took the rank of infra rank 5, which was lost.
    assert page.search("rank 5") == ["infra rank 8 at 10.0.0.9 pid 4008, rank 5"]
    assert page.search("global 41") == ["infra rank 8 at 10.0.0.9 pid 4008, global rank 41"]
    assert page.search("5")[:2] == ["infra rank 5 at 10.0.0.6 pid 104005", "infra rank 8 at 10.0.0.9 pid 4008, rank 5"]
    assert page.search("5")[-1] == "infra rank 5 at 10.0.0.6 pid 4005, dead", "those who are gone can be found too"
    assert page.search("nowhere") == []
    assert "No node matches" in page.text("found")


def test_what_is_known_of_a_node_is_shown(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait_kinds(active=8, standby=2)
    told = page.pick("infra 3")
    assert page.text("node-name") == "infra rank 3 at 10.0.0.4 pid 4003"
    assert told["infra rank"] == "3"
    assert told["address"] == "10.0.0.4"
    assert told["pid"] == "4003"
    assert told["domain"] == "rack-01"
    assert (told["group rank"], told["global ranks"]) == ("3", "24 to 31")
    assert told["incarnation"] == f"{4 * 0x9E3779B97F4A7C15 & 2**64 - 1:016x}"
    assert "ago" in told["last beat"]
    assert told["failures"] == "1"
    failure = page.all("#node .fail")[0]
    assert "cycle 1, rank 24" in failure
    assert "exit code 1" in failure
    assert "CUDA error" in failure
    assert "/scratch/logs/llama-70b/cycle_1/rank_24/stderr.log" in failure


def test_nodes_are_picked_with_the_mouse(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait_kinds(active=8, standby=2)
    page.wait_drawn(10)
    page.point_at_cell(*CELL)
    page.wait_text("tip", "infra rank 0 at 10.0.0.1 pid 4000: active, rank 0, rack-01")
    page.click_cell(*CELL)
    page.wait_text("node-name", "infra rank 0 at 10.0.0.1")
    page.at("node-close").click()
    assert not page.at("node").is_displayed()


def test_nodes_are_picked_with_the_keyboard(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait_kinds(active=8, standby=2)
    page.wait_drawn(10)
    grid = page.at("grid")
    grid.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    spoken = page.run("return document.getElementById('spoken').textContent")
    assert spoken == "infra rank 1 at 10.0.0.2 pid 4001: active, rank 1, rack-01; failed 1×"
    grid.send_keys(Keys.ENTER)
    page.wait_text("node-name", "infra rank 1 at 10.0.0.2")
    grid.send_keys(Keys.ESCAPE)
    assert not page.at("node").is_displayed()
    grid.send_keys(Keys.ARROW_DOWN)
    assert page.run("return document.getElementById('spoken').textContent") != spoken


def test_the_dead_that_were_replaced_do_not_clutter(page: Page, server: Server) -> None:
    show(page, server, eventful())
    page.wait_kinds(active=8, standby=2)
    assert page.text("gone-title") == "Gone (1): replaced, or not needed any more"
    page.at("gone-title").click()
    gone = page.wait("who is gone", lambda: page.all("#gone-list li"))
    assert "infra rank 5 at 10.0.0.6 pid 4005" in gone[0]
    assert "lost: no beat for 5 s" in gone[0]
    page.driver.find_element(By.CSS_SELECTOR, "#gone-list button").click()
    assert "DEAD was active" in page.text("node-body")


def test_nodes_are_counted_by_kind_and_by_domain(page: Page, server: Server) -> None:
    story = eventful()
    story.silence(6)
    show(page, server, story)
    page.wait_kinds(active=7, standby=2, suspect=1)
    page.driver.find_element(By.CSS_SELECTOR, "#domains summary").click()
    rows = page.wait("a table", lambda: page.all("#domain-table tr"))
    assert rows[0].split("\t") == ["domain", "nodes", "active", "standby", "suspect"]
    assert rows[1].split("\t") == ["rack-02", "4", "2", "1", "1"], "the one in trouble comes first"
    page.driver.find_element(By.CSS_SELECTOR, "#kinds [data-kind='suspect']").click()
    assert page.all("#found button") == ["infra rank 6 at 10.0.0.7 pid 4006"]


def test_ten_thousand_nodes_stay_usable(page: Page, server: Server) -> None:
    story = crowded()
    server.send(*story.lines)
    story.on_line = server.send
    began = time.monotonic()
    page.open(server.url)
    page.wait("ten thousand nodes", lambda: sum(page.kinds().values()) == 9_999)
    draw_ms = page.wait_drawn(9_999)
    shown_s = time.monotonic() - began
    assert page.text("nodes-title") == "Nodes (9,999 in 139 domains)"

    began = time.monotonic()
    page.click_cell(*CELL)
    page.wait_text("node-name", "infra rank 0 at 10.0.0.1")
    click_s = time.monotonic() - began
    began = time.monotonic()
    assert page.search("infra 9876") == ["infra rank 9876 at 10.0.39.127 pid 13876"]
    search_s = time.monotonic() - began
    page.at("search").send_keys(Keys.ENTER)
    page.wait_text("node-name", "infra rank 9876")

    page.search("")
    began = time.monotonic()
    story.silence(5)
    page.wait("it is suspect", lambda: page.kinds().get("suspect") == 6)
    live_s = time.monotonic() - began
    print(
        f"10,000 nodes: shown in {shown_s:.2f} s, drawn in {draw_ms:.0f} ms, a click answered in {click_s:.2f} s, "
        f"a search in {search_s:.2f} s, a change seen after {live_s:.2f} s"
    )


# --- events -------------------------------------------------------------------------------------------


def test_events_are_told_in_sentences_newest_first_and_live(page: Page, server: Server) -> None:
    story = eventful()
    show(page, server, story)
    page.wait("events", lambda: len(page.events()) > 10)
    told = page.events()
    assert told[-1].startswith("The run llama-70b began on node-0001 pid 4242")
    assert "Cycle 3 sealed after 2.1 s: 8 nodes train, 1 on standby; master 10.0.0.1:41003." in told
    assert "9 nodes arrived in cycle 3: infra ranks 0 to 4, 6 to 9." in told
    assert not any("The coordinator looked" in each for each in told), "routine is left out"
    story.catch_up()
    story.silence(2)
    page.wait("the news", lambda: page.events()[0] == "No beat for 2.5 s: infra rank 2 at 10.0.0.3 pid 4002.")

    page.at("event-filter").send_keys("rank 5 lost")
    assert len(page.events()) == 2
    page.at("event-filter").clear()
    page.at("event-filter").send_keys(" ")
    Select(page.at("event-source")).select_by_visible_text("everything")
    assert any("The coordinator looked: 10 nodes live" in each for each in page.events())
    Select(page.at("event-source")).select_by_visible_text("trouble")
    assert not any("sealed" in each for each in page.events())


@pytest.mark.parametrize("seed", [0, 8, 13])
def test_simulated_runs_with_faults_are_told_to_their_end(page: Page, server: Server, seed: int) -> None:
    recording = record_seed(seed)
    server.send(*recording.lines)
    page.open(server.url)
    verdict = recording.state.verdict
    assert verdict is not None
    page.wait_text("status-word", verdict.kind.upper())
    page.wait("its events", lambda: len(page.events()) > 5)
    assert not [each for each in page.events() if each.startswith("{")], "an event without a sentence"
    assert page.all(".cycle .number")[0] == str(recording.state.cycles[-1].cycle_id)


# --- the connection -----------------------------------------------------------------------------------


def test_a_lost_connection_is_shown_and_recovers_by_itself(page: Page, server: Server) -> None:
    story = eventful()
    show(page, server, story)
    page.wait_text("line", "live")
    page.wait_kinds(active=8, standby=2)
    page.run("window.isTheSame = true")
    page.may_lose_server = True
    server.kill()
    story.on_line = lambda _: None
    page.wait_text("banner", "Not connected since ")
    assert "Showing the state as of " in page.text("banner")
    assert page.text("line") == "not connected"
    assert page.kinds() == {"active": 8, "standby": 2}, "what was known stays"

    story.silence(2)
    story.lose(2)
    server.start()
    server.send(*story.lines)
    page.wait_text("line", "live")
    assert page.text("banner") == ""
    page.wait_text("status-word", "RESTARTING")
    page.wait("the news", lambda: any("infra rank 2 at 10.0.0.3 pid 4002 was lost" in each for each in page.events()))
    seals = [each for each in page.events() if each.startswith("Cycle 4 sealed")]
    assert len(seals) == 1, "no event is told twice"
    assert page.run("return window.isTheSame")


def test_a_run_that_is_over_stays_when_its_server_goes(page: Page, server: Server) -> None:
    story = eventful()
    story.end(VerdictKind.SUCCEEDED)
    show(page, server, story)
    page.wait_text("line", "the run is over")
    page.may_lose_server = True
    server.kill()
    page.wait("the stream has ended", lambda: page.run("return document.body.dataset.line") == "over")
    time.sleep(1.5)  # Time for a wrong word; a right one is there at once.
    assert page.text("line") == "the run is over"
    assert page.text("banner") == ""
    assert page.text("status-word") == "SUCCEEDED"

    server.start()
    later = Story(run_id="llama-70b", epoch="feedfeedfeedfeed")
    server.send(*later.lines)
    page.wait_text("newer", "A newer run began")
    page.driver.find_element(By.CSS_SELECTOR, "#newer button").click()
    page.wait_text("status-word", "INITIALIZING")


def test_the_verdict_is_seen_though_the_server_goes_with_the_run(page: Page, server: Server) -> None:
    story = eventful()
    show(page, server, story)
    page.wait_text("line", "live")
    page.may_lose_server = True
    story.end(VerdictKind.SUCCEEDED)
    server.close()
    page.wait_text("status-word", "SUCCEEDED")
    page.wait_text("line", "the run is over")
    page.wait("the last cycle is over", lambda: page.all(".cycle .status")[0] == "FINISHED")
    assert page.text("banner") == ""


# --- which run ----------------------------------------------------------------------------------------


def test_without_a_run_it_says_what_it_waits_for(page: Page, server: Server) -> None:
    page.open(server.url)
    page.wait_text("waiting-title", "No run yet")
    assert "waits for its coordinator" in page.text("waiting-text")
    server.send(*Story(run_id="at-last").lines)
    page.wait_text("run-name", "at-last")
    page.wait_text("status-word", "INITIALIZING")


def test_of_several_runs_one_can_be_chosen(page: Page, server: Server) -> None:
    over = Story(run_id="first", epoch="1" * 16, began_ago_s=3600, nnodes="2:2")
    over.begin(2, 2)
    over.end(VerdictKind.SUCCEEDED)
    going = Story(run_id="second", epoch="2" * 16, began_ago_s=60, nnodes="3:3")
    going.begin(3, 3)
    server.send(*over.lines, *going.lines)
    page.open(server.url)
    page.wait_text("run-name", "second")
    page.wait_kinds(active=3)
    choice = Select(page.at("runs"))
    assert [option.text.split(" · ")[:2] for option in choice.options] == [["second", "RUNNING"], ["first", "FINISHED"]]
    choice.select_by_index(1)
    page.wait_text("run-name", "first")
    page.wait_text("status-word", "SUCCEEDED")
    page.wait_kinds(finished=2)
    page.open(f"{server.url}#run={'1' * 16}")
    page.wait_text("run-name", "first")


# --- whatever a run says is text ------------------------------------------------------------------------


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&lt;b&gt; \u202e'\"`${1}"
)


def test_what_a_run_says_is_shown_as_text(page: Page, server: Server) -> None:
    story = Story(run_id=HOSTILE, began_ago_s=60, nnodes="2:3")
    story.open()
    for infra_rank in range(3):
        story.join(infra_rank, HOSTILE, addr=HOSTILE)
    story.arrive(story.live)
    story.seal(2)
    story.wait(10)
    story.fail(0, HOSTILE, HOSTILE)
    story.tell(journal.CycleWaits(cycle_id=2, reason=HOSTILE))
    story.recover(2)
    story.wait(10)
    story.silence(1)
    story.lose(1)
    story.recover(2)
    story.tell(journal.CycleCalled(cycle_id=3, incarnations=(), roles=(), nodes=(HOSTILE,), reason=HOSTILE))
    show(page, server, story)
    page.wait_kinds(active=2)
    page.driver.find_elements(By.CSS_SELECTOR, ".cycle .row")[-1].click()
    page.at("gone-title").click()
    assert HOSTILE.replace("  ", " ") in page.pick("infra 0")["address"]
    assert HOSTILE in page.text("run-name")
    assert HOSTILE in page.all(".cycle .why")[1]
    assert any(HOSTILE in each for each in page.events())
    page.at("event-filter").send_keys("onerror")
    assert page.events()
    page.point_at_cell(*CELL)
    page.wait_text("tip", HOSTILE)
    assert page.run("return document.querySelectorAll('img, main script, b b').length") == 0
    assert "owned" not in page.driver.title.split(HOSTILE)[0]
    assert page.run("return document.documentElement.scrollWidth <= innerWidth"), "long words make it no wider"


# --- how it looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_fits_the_screen(page: Page, server: Server, width: int, height: int) -> None:
    show(page, server, eventful(), width=width, height=height)
    page.wait_kinds(active=8, standby=2)
    page.wait_drawn(10)
    assert page.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    box = page.at("status-word").rect
    assert box["y"] + box["height"] < height / 3, "the verdict is the first thing one sees"
    page.pick("infra 3")
    assert page.run("return document.documentElement.scrollWidth") == width
    in_sight = "const box = arguments[0].getBoundingClientRect(); return box.top < innerHeight && box.bottom > 0"
    page.wait("the details are in sight", lambda: page.run(in_sight, page.at("node-name")))


CONTRASTS = """
const style = getComputedStyle(document.documentElement);
const light = (name) => {
  const hex = style.getPropertyValue(name).trim();
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
return Object.fromEntries(arguments[0].map(([a, b]) => [`${a} on ${b}`, ratio(a, b)]));
"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_words_can_be_read_in_the_dark_and_in_the_light(page: Page, server: Server, theme: str) -> None:
    show(page, server, eventful(), theme=theme)
    words = ["--text", "--dim", "--run", "--good", "--warn", "--bad", "--stop"]
    pairs = [[word, "--panel"] for word in words] + [["--dim", "--ground"], ["--ground", "--k-active"]]
    pairs += [["--on-tone", tone] for tone in ("--run", "--good", "--bad", "--stop", "--wait")]
    contrasts = page.run(CONTRASTS, pairs)
    assert {pair: ratio for pair, ratio in contrasts.items() if ratio < 4.5} == {}
