"""The night of `story`, with a trainer that hands its weights to generators: some updates fail, or are retried."""

from __future__ import annotations

from ft_rendezvous.core.update_notes import ReportedUpdate, StepTime, UpdateOutcome
from ft_rendezvous.protocol import journal
from tests.state.story import Story, _crash, _drain, _end, _gather, _lose_and_flap


def plain(version: int) -> ReportedUpdate:
    return ReportedUpdate(
        version=version,
        outcome=UpdateOutcome.COMPLETED,
        attempts=1,
        parties=4,
        updated=4,
        failed_count=0,
        failed=(),
        steps=(StepTime("pause", 0.012), StepTime("transfer", 1.2)),
        duration_s=1.25,
        lost_s=0.0,
        reason="",
    )


def retried(version: int) -> ReportedUpdate:
    return ReportedUpdate(
        version=version,
        outcome=UpdateOutcome.COMPLETED,
        attempts=2,
        parties=4,
        updated=3,
        failed_count=1,
        failed=("gen-2",),
        steps=(
            StepTime("pause", 0.012),
            StepTime("transfer", 60.0),
            StepTime("pause", 0.01),
            StepTime("transfer", 1.3),
        ),
        duration_s=62.5,
        lost_s=61.0,
        reason="transfer on gen-2: no answer for 60 s",
    )


def failed(version: int) -> ReportedUpdate:
    return ReportedUpdate(
        version=version,
        outcome=UpdateOutcome.FAILED,
        attempts=2,
        parties=3,
        updated=0,
        failed_count=12,
        failed=tuple(f"gen-{number}" for number in range(8)),
        steps=(StepTime("pause", 0.02),),
        duration_s=8.0,
        lost_s=8.0,
        reason="pause on gen-0: ConnectionError | refused",
    )


def report(
    story: Story, *told: ReportedUpdate, merged: int = 0, cycle_id: int | None = None
) -> journal.UpdatesReported:
    """What a node passes on: some updates singly, and some plain ones merged."""
    return journal.UpdatesReported(
        cycle_id=story.cycle_id if cycle_id is None else cycle_id,
        incarnation=story.lives[0],
        node=story.name(0),
        updates=merged + len(told),
        failed=sum(each.outcome is UpdateOutcome.FAILED for each in told),
        retried=sum(each.attempts > 1 for each in told),
        spent_s=1.25 * merged + sum(each.duration_s for each in told),
        lost_s=sum(each.lost_s for each in told),
        told=told,
    )


def tell_update_story() -> Story:
    story = Story()
    _gather(story)
    story.tell(report(story, plain(40), merged=3))
    story.tell(report(story, plain(41)), after_s=5.0)
    _crash(story)
    story.tell(report(story, failed(42), cycle_id=1), after_s=1.0)
    story.tell(report(story, retried(43), plain(44), merged=1), after_s=5.0)
    story.mark("updates")
    _lose_and_flap(story)
    _drain(story)
    _end(story)
    return story
