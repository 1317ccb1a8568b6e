"""What a report says adds up to what the fold knows."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from ft_rendezvous.cli.report import read_report
from ft_rendezvous.core.model import NodesLost, VerdictKind
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.view import view_run
from ft_rendezvous.state.read.log_reader import EventLogReader, Gap
from ft_rendezvous.state.read.sources import Picture
from ft_rendezvous.state.report.markdown import write_page
from ft_rendezvous.state.report.plots import CannotDraw, draw_timeline
from ft_rendezvous.state.report.run_report import RunPhase, RunReport
from tests.state.group_story import tell_group_story, training
from tests.state.layout import lay_out, path_of
from tests.state.page.story import Story
from tests.state.recording import record_seed
from tests.state.story import tell_story

PNG = b"\x89PNG"


def report_of(folder: Path, end_ns: int | None = None) -> tuple[RunReport, RunState]:
    reader, report = EventLogReader(folder), RunReport()
    for told in reader.read():
        report.take(told.event, reader.state)
    reader.close()
    report.finish(end_ns or reader.state.end_ns or reader.state.time_ns)
    return report, reader.state


def told_story(place: Path, upto: str | None = None) -> tuple[Picture, RunReport]:
    story = tell_story()
    lines = story.lines[: story.marks[upto]] if upto else story.lines
    return read_report(lay_out(place, lines), story.now_ns)


@pytest.mark.parametrize("seeds", [range(30), range(30, 60)], ids=str)
def test_time_adds_up_to_what_the_fold_counts(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        recording = record_seed(seed)
        report, state = report_of(lay_out(tmp_path, recording.lines, name=f"sim-{seed}"))
        seconds = report.seconds()
        trained = sum(spent for (phase, _), spent in seconds.items() if phase is RunPhase.TRAINING)
        lost = {cause: spent for (phase, cause), spent in seconds.items() if phase is RunPhase.LOST}
        run = view_run(state, state.end_ns or state.time_ns)
        assert run is not None
        if state.has_groups:
            # The silence of a lost node may reach back to when there was another number of groups.
            about_s = 2 * recording.world.settings.lease_s
            assert trained == pytest.approx(run.trained_s, abs=about_s), f"seed {seed}"
            assert sum(lost.values()) == pytest.approx(run.lost_s, abs=about_s), f"seed {seed}"
            _check_spans_of_groups(report)
            continue
        assert trained == pytest.approx(run.trained_s), f"seed {seed}"
        assert lost == pytest.approx({cause: each.seconds for cause, each in run.lost.items() if each.seconds})
        for before, after in zip(report.spans, report.spans[1:], strict=False):
            assert before.end_ns == after.start_ns
        if report.spans and state.end_ns is not None:
            assert (report.spans[0].start_ns, report.spans[-1].end_ns) == (state.start_ns, state.end_ns)


def _check_spans_of_groups(report: RunReport) -> None:
    """A group does one thing at a time."""
    for group in {span.group for span in report.spans}:
        own = [span for span in report.spans if span.group == group]
        for before, after in pairwise(own):
            assert before.end_ns <= after.start_ns


@pytest.mark.parametrize("is_sealed", [False, True], ids=["before the seal", "after the seal"])
def test_lost_time_is_reported_under_the_corrected_cause(tmp_path: Path, is_sealed: bool) -> None:
    story = Story(began_ago_s=600)
    story.begin(5, 4)
    story.wait(300)
    victim = story.node(2)
    story.fail(1, "connection reset")
    correction = journal.CauseCorrected(cycle_id=2, why=NodesLost((victim.name,), (2,)))
    if not is_sealed:
        story.tell(correction)
    story.recover(4, 3.0)
    if is_sealed:
        story.tell(correction)
    story.wait(10)
    story.end(VerdictKind.SUCCEEDED)
    picture, report = read_report(lay_out(tmp_path, story.lines), story.state.time_ns)
    assert [(span.phase, span.cause) for span in report.spans if span.cause] == [(RunPhase.LOST, "nodes_lost")]
    page = write_page(picture, report)
    assert "lost: nodes lost" in page
    assert "lost: workers failed" not in page
    assert f"lost {victim.name} (rank 2)" in page


def test_the_story_has_its_slow_its_flapping_and_its_failed(tmp_path: Path) -> None:
    _, report = told_story(tmp_path)
    assert [(slow.cycle_id, round(slow.after_s)) for slow in report.slowest()[:5]] == [
        (1, 41),
        (1, 41),
        (1, 41),
        (2, 12),
        (5, 5),
    ]
    (place,) = report.flapping()
    assert (place.key, place.incarnations, place.silences, dict(place.fences)) == ("infra rank 6", 4, 4, {"lost": 3})
    assert place.was_parked
    assert {cycle_id: notes.failure_count for cycle_id, notes in report.notes.items() if notes.failures} == {1: 1, 4: 1}
    assert [span.phase.value for span in report.spans] == ["waiting", *["training", "lost"] * 4, "training"]


def test_a_gap_is_shown_as_time_that_nobody_knows(tmp_path: Path) -> None:
    story = tell_story()
    folder = lay_out(tmp_path, story.lines, per_file=40)
    path_of(folder, 2).unlink()
    picture, report = read_report(folder, story.now_ns)
    unknown = [span for span in report.spans if span.phase is RunPhase.UNKNOWN]
    assert len(unknown) == 1
    assert picture.missing is not None
    assert picture.missing.gaps == [Gap(41, 80)]
    page = write_page(picture, report)
    assert "| not recorded | 1 |" in page
    assert "40 events are missing." in page
    assert "Events that are not there: 41 to 80" in page
    for before, after in zip(report.spans, report.spans[1:], strict=False):
        assert before.end_ns == after.start_ns


def test_of_a_vanished_run_the_time_ends_when_it_was_last_heard_of(tmp_path: Path) -> None:
    story = tell_story()
    folder = lay_out(tmp_path, story.lines[: story.marks["training"]])
    picture, report = read_report(folder, story.now_ns + 10_000 * NS)
    assert picture.run.status == "ABORTED"
    assert report.spans[-1].end_ns == picture.run.end_time_ns
    assert write_page(picture, report).startswith("# Run llm-7b: ABORTED\n\nIts coordinator vanished; before that: RUN")


def test_what_workers_said_cannot_break_the_page(tmp_path: Path) -> None:
    story = tell_story()
    lines = [line.replace(b"RuntimeError: CUDA", b"a|b \\u001b[31m \\n <x> CUDA") for line in story.lines]
    page = write_page(*read_report(lay_out(tmp_path, lines), story.now_ns))
    assert "\x1b" not in page
    rows = [line for line in page.splitlines() if line.startswith("|") and "CUDA" in line]
    assert rows
    assert all("a\\|b" in row for row in rows)


@pytest.mark.parametrize("upto", [None, "gathering", "restarting"])
def test_there_is_a_picture(tmp_path: Path, upto: str | None) -> None:
    picture, report = told_story(tmp_path, upto)
    draw_timeline(picture.run, report, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(PNG)


def test_there_is_a_picture_of_thousands_of_cycles(tmp_path: Path) -> None:
    picture, report = told_story(tmp_path)
    length_ns = report.spans[-1].end_ns - report.spans[0].start_ns
    once = list(report.spans)
    for turn in range(1, 100):
        report.spans += [
            type(span)(
                span.phase, span.start_ns + turn * length_ns, span.end_ns + turn * length_ns, span.cycle_id, span.cause
            )
            for span in once
        ]
    draw_timeline(picture.run, report, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(PNG)


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, report = told_story(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CannotDraw, match=r"pip install 'ft-rendezvous\[plots\]'"):
        draw_timeline(picture.run, report, tmp_path / "timeline.png")


# --- groups -------------------------------------------------------------------------------------------------


def test_a_report_of_groups_says_what_each_of_them_cost(tmp_path: Path) -> None:
    story = tell_group_story()
    picture, report = read_report(lay_out(tmp_path, story.lines), story.now_ns)
    page = write_page(picture, report)
    assert "| groups | 3 of 2 nodes |" in page
    assert "## Groups" in page
    groups = picture.run.groups
    assert groups[1].lost_s > 240, "it waited for a node"
    lost = [line for line in page.splitlines() if line.startswith("| lost:")]
    assert [line.split("|")[1:3] for line in lost] == [[" lost: nodes lost ", " 2 "], [" lost: workers failed ", " 1 "]]
    assert picture.run.lost_s == pytest.approx(sum(group.lost_s for group in groups) / 3)
    assert "| 1 | all |" in page
    assert "| 4 | 1 |" in page


def test_a_report_of_a_run_without_groups_has_no_word_of_them(tmp_path: Path) -> None:
    assert "group" not in write_page(*told_story(tmp_path))


@pytest.mark.parametrize("is_long", [False, True], ids=["lanes", "shares"])
def test_a_plot_of_groups(tmp_path: Path, is_long: bool) -> None:
    pytest.importorskip("matplotlib")
    story = tell_group_story()
    if is_long:
        story = training()
        for _ in range(100):
            story.open(story.fail(3)[1], 1, after_s=30.0)
            story.arrive(2, 3)
            story.seal_group(1, 2, 3, after_s=9.0)
    picture, report = read_report(lay_out(tmp_path, story.lines), story.now_ns)
    draw_timeline(picture.run, report, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(PNG)
