"""Updates in what is known of a run: totals, the newest few, sentences, the report, the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ft_rendezvous.cli.report import read_report
from ft_rendezvous.cli.state_blocks import blocks_of
from ft_rendezvous.cli.state_draw import render_lines
from ft_rendezvous.cli.state_watch import _sentences
from ft_rendezvous.core.update_notes import ReportedUpdate
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import copy_state, decode_line, encode_line, encode_state, make_event, take_event
from ft_rendezvous.state.model.records import UpdateTotals
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.update_fold import PLAIN_KEPT, TROUBLED_KEPT
from ft_rendezvous.state.model.view import view_cycles, view_run
from ft_rendezvous.state.model.wording import describe
from ft_rendezvous.state.read.sources import FolderSource
from ft_rendezvous.state.report.markdown import write_page
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.metrics import write_metrics
from tests.state.layout import fold_all, lay_out
from tests.state.recording import record_seed
from tests.state.story import Story, tell_story
from tests.state.update_story import failed, plain, report, retried, tell_update_story


def sentence(entry: journal.UpdatesReported) -> str:
    return describe(make_event(1, 0, entry))


def test_totals_are_those_of_the_run_and_of_each_cycle() -> None:
    story = tell_update_story()
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert run.updates == UpdateTotals(updates=9, failed=1, retried=2, spent_s=79.25, lost_s=69.0)
    cycles = {cycle.cycle_id: cycle.updates for cycle in view_cycles(story.state, story.now_ns)}
    assert cycles == {
        1: UpdateTotals(updates=6, failed=1, retried=1, spent_s=14.25, lost_s=8.0),
        2: UpdateTotals(updates=3, failed=0, retried=1, spent_s=65.0, lost_s=61.0),
        3: None,
        4: None,
        5: None,
    }
    told = [(update.cycle_id, update.version, update.is_plain) for update in run.recent_updates]
    assert told == [(1, 40, True), (1, 41, True), (1, 42, False), (2, 43, False), (2, 44, True)]
    assert run.recent_updates[0].node == "infra rank 0 at 10.0.0.10 pid 4200"
    assert run.lost_s == pytest.approx(_run_of(tell_story()).lost_s), "it is not time without training"


def _run_of(story: Story):  # type: ignore[no-untyped-def]
    return view_run(story.state, story.now_ns)


def test_what_is_kept_is_bounded_and_plain_ones_do_not_push_the_others_out() -> None:
    story = tell_update_story()
    for version in range(200):
        story.tell(report(story, failed(1000 + version)))
    for version in range(2000):
        story.tell(report(story, plain(2000 + version)))
    recent = story.state.recent_updates
    assert [each.version for each in recent if not each.is_plain] == list(range(1200 - TROUBLED_KEPT, 1200))
    assert [each.version for each in recent if each.is_plain] == list(range(4000 - PLAIN_KEPT, 4000))
    assert story.state.updates.updates == 9 + 200 + 2000


def test_a_report_of_a_cycle_that_is_not_remembered_counts_for_the_run() -> None:
    story = tell_update_story()
    before = view_cycles(story.state, story.now_ns)
    story.tell(report(story, plain(1), cycle_id=77))
    assert story.state.updates.updates == 10
    assert view_cycles(story.state, story.now_ns) == before


def test_a_replay_and_a_told_state_give_the_same() -> None:
    story = tell_update_story()
    assert encode_state(fold_all(RunState(), story.lines)) == encode_state(story.state)
    at = story.marks["updates"]
    again = copy_state(fold_all(RunState(), story.lines[:at]))
    for line in story.lines[at:]:
        again = take_event(again, decode_line(line))
    assert encode_state(again) == encode_state(story.state)


@pytest.mark.parametrize(
    ("told", "merged", "text"),
    [
        ((plain(7),), 0, "an update of cycle 1 on {node}: version 7 completed after 1.2 s, 4 of 4 parties have it"),
        (
            (plain(7),),
            9,
            "10 updates of cycle 1 on {node} in 12.5 s; the newest: version 7 completed after 1.2 s, "
            "4 of 4 parties have it",
        ),
        (
            (retried(8), plain(9)),
            1,
            "3 updates of cycle 1 on {node} in 1 min 05 s, 0 failed, 1 retried, 1 min 01 s lost; first: version 8 "
            "completed after 1 min 02 s in 2 attempts, 1 min 01 s lost, 3 of 4 parties have it; failed: gen-2: "
            "transfer on gen-2: no answer for 60 s",
        ),
        (
            (failed(8),),
            0,
            "an update of cycle 1 on {node}: version 8 failed after 8.0 s in 2 attempts, 8.0 s lost, 0 of 3 parties "
            "have it; failed: gen-0, gen-1, gen-2, gen-3, gen-4, gen-5, gen-6, gen-7 and 4 more: pause on gen-0: "
            "ConnectionError | refused",
        ),
    ],
)
def test_an_entry_is_told_in_a_sentence(told: tuple[ReportedUpdate, ...], merged: int, text: str) -> None:
    story = tell_update_story()
    assert sentence(report(story, *told, merged=merged, cycle_id=1)) == text.format(node=story.name(0))


def test_failed_and_retried_ones_are_logged_and_plain_ones_for_those_who_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = tell_update_story()
    caplog.set_level("DEBUG", "ft_rendezvous")
    for told in (plain(1), retried(2), failed(3)):
        journal.log_entry(report(story, told))
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "INFO"]
    assert (
        caplog.records[1].getMessage().startswith(f"updates cycle=5 node={story.name(0)} updates=1 failed=0 retried=1")
    )
    assert "failed: gen-2: transfer on gen-2" in caplog.records[1].getMessage()


def test_plain_ones_are_routine_events() -> None:
    lines = tell_update_story().lines
    shown = [line for line in _sentences(iter(lines), 0, is_all=False) if " update" in line]
    assert len(shown) == 2
    assert len([line for line in _sentences(iter(lines), 0, is_all=True) if " update" in line]) == 4


def test_the_report_has_a_table_and_the_time_that_was_lost(tmp_path: Path) -> None:
    story = tell_update_story()
    picture, told = read_report(lay_out(tmp_path, story.lines), story.now_ns)
    page = write_page(picture, told)
    assert "| updates | 9 in 1 min 19 s, of that 1 min 09 s in attempts that failed, 1 failed, 2 retried |" in page
    section = page.split("## Updates\n")[1].split("\n## ")[0]
    assert "| 1 | 6 | 1 | 1 | 14.2 s | 2.4 s | 8.0 s |" in section
    assert "| all | 9 | 1 | 2 | 1 min 19 s | 8.8 s | 1 min 09 s |" in section
    assert "| 42 | failed | 2 | 0 of 3 | 8.0 s | 8.0 s | pause 20 ms | gen-0, gen-1" in section
    assert "| 43 | completed | 2 | 3 of 4 | 1 min 02 s | 1 min 01 s | pause 12 ms, transfer 1 min 00 s, " in section
    assert "| 44 |" not in section, "a plain one is only counted"
    assert "ConnectionError \\| refused" in section


def test_a_report_of_very_many_failures_shows_the_first_and_the_last(tmp_path: Path) -> None:
    story = tell_update_story()
    story.now_ns += NS
    for version in range(500):
        story.tell(report(story, failed(1000 + version)))
    picture, told = read_report(lay_out(tmp_path, story.lines), story.now_ns)
    section = write_page(picture, told).split("## Updates\n")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if "| failed | 2 |" in row]
    assert ("| 1000 |" in section, "| 1499 |" in section, "| 1200 |" in section) == (True, True, False)
    assert len(rows) == 39
    assert "the first and the last are listed" in section


def test_status_shows_totals_and_what_went_wrong(tmp_path: Path) -> None:
    story = tell_update_story()
    lay_out(tmp_path, story.lines)
    picture = FolderSource(tmp_path, None, lambda: story.now_ns).look()
    lines = list(render_lines(blocks_of(picture, story.now_ns)))
    title = "updates: 9 in 1 min 19 s, of that 1 min 09 s in attempts that failed, 1 failed, 2 retried"
    rows = lines[lines.index(title) + 1 :]
    assert rows[0].split()[:4] == ["at", "cycle", "version", "outcome"]
    assert [row.split()[3] for row in rows[1:6]] == ["43", "44", "42", "41", "40"]
    assert "no answer for 60 s" in rows[1]
    assert "gen-7 and 4 more" in rows[3]


def test_metrics_count_updates_and_their_time() -> None:
    story, live_run = tell_update_story(), LiveRun()
    for line in story.lines:
        live_run.take(decode_line(line), line)
    text = write_metrics(live_run, story.now_ns).decode()
    samples = {
        (sample.name, sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "update" in sample.name and sample.name.endswith("_total")
    }
    assert samples == {
        ("ft_updates_total", "completed"): 8,
        ("ft_updates_total", "failed"): 1,
        ("ft_updates_retried_total", None): 2,
        ("ft_update_seconds_total", None): 79.25,
        ("ft_update_lost_seconds_total", None): 69.0,
    }


def test_a_run_without_updates_shows_nothing_of_them(tmp_path: Path) -> None:
    story, live_run = tell_story(), LiveRun()
    for line in story.lines:
        live_run.take(decode_line(line), line)
    assert b"update" not in write_metrics(live_run, story.now_ns)
    picture, told = read_report(lay_out(tmp_path, story.lines), story.now_ns)
    assert "pdate" not in write_page(picture, told)
    assert not [line for line in render_lines(blocks_of(picture, story.now_ns)) if "update" in line]


@pytest.mark.parametrize("change", [b'"spent_s":1e16', b'"spent_s":-1.0', b'"updates":-1', b'"updates":1e300'])
def test_a_line_whose_sums_were_damaged_is_no_event(change: bytes) -> None:
    """A sum that is not finite would spoil all states after it."""
    story = tell_update_story()
    line = encode_line(make_event(1, 0, report(story, plain(1))))
    field, _, _ = change.partition(b":")
    start = line.index(field + b":")
    end = line.index(b",", start)
    assert decode_line(line)
    with pytest.raises(ValueError, match="Expected"):
        decode_line(line[:start] + change + line[end:])


def test_simulated_runs_have_updates_of_cycles_that_are_over() -> None:
    """So replays, which compare the fold with itself, know them, too."""
    entries = [
        event.event
        for seed in (3, 28, 45)
        for event in record_seed(seed).events
        if isinstance(event.event, journal.UpdatesReported | journal.CycleSealed)
    ]
    newest, late = 0, 0
    for entry in entries:
        if isinstance(entry, journal.CycleSealed):
            newest = entry.cycle_id
        else:
            late += entry.cycle_id < newest
    assert late > 0
    assert any(isinstance(entry, journal.UpdatesReported) and entry.failed for entry in entries)
