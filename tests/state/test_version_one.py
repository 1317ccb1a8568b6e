"""What programs of schema version 1 wrote is still read: their logs, and the answers of their API.

`version_one/` was recorded with the last of them, commit ff0b6ed, from the simulated run of seed 7: a log of three
files, and the API's records at the end of the second file. The second file begins while nodes wait after a loss, the
third while a world trains of which one node has finished.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from ft_rendezvous.cli.report import read_report
from ft_rendezvous.state.model.events import StateTold, decode_line, encode_line, encode_state
from ft_rendezvous.state.model.records import SCHEMA_VERSION, Node, RunStatus
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.version_one import CycleOne, convert_cycle
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.log_reader import load
from tests.state.layout import fold_all, path_of

RECORDED = Path(__file__).parent / "version_one"
LOG = RECORDED / "sim-1738f7d93d9c1724"
EVENTS, FILES = 38, (1, 2, 3)


def lines_of(number: int) -> list[bytes]:
    return path_of(LOG, number).read_bytes().splitlines(keepends=True)


def fold_before(number: int) -> RunState:
    """The fold of all events before a file, without the states that are told in between."""
    lines = [line for before in range(1, number) for line in lines_of(before)]
    return fold_all(RunState(), [line for line in lines if not isinstance(decode_line(line).event, StateTold)])


def state_in(line: bytes) -> RunState:
    event = decode_line(line).event
    assert isinstance(event, StateTold)
    return event.state


def test_the_log_is_of_version_one() -> None:
    versions = {json.loads(line)["schema_version"] for number in FILES for line in lines_of(number)}
    assert versions == {1}
    assert all(json.loads(lines_of(number)[0])["event"]["kind"] == "StateTold" for number in FILES[1:])


@pytest.mark.parametrize("number", FILES[1:])
def test_an_old_state_is_the_fold_of_the_events_before_it(number: int) -> None:
    told, folded = state_in(lines_of(number)[0]), fold_before(number)
    assert encode_state(told) == encode_state(folded)
    rest = lines_of(number)[1:]
    assert encode_state(fold_all(told, rest)) == encode_state(fold_all(folded, rest))


def test_a_pause_that_goes_on_in_an_old_state_is_charged() -> None:
    state = state_in(lines_of(2)[0])
    run = view_run(state, state.time_ns + 10 * NS)
    assert run is not None
    assert (run.status, run.groups) == (RunStatus.RESTARTING, ())
    assert run.lost["nodes_lost"].seconds > 10
    sealed = [cycle.seal_time_ns for cycle in view_cycles(state, state.time_ns) if cycle.seal_time_ns is not None]
    assert run.trained_s + run.lost_s == pytest.approx((state.time_ns - sealed[0]) / NS + 10)


@pytest.mark.parametrize("gone", [(), (1,), (1, 2), (2,)])
def test_an_old_log_is_read_whichever_of_its_files_are_there(tmp_path: Path, gone: tuple[int, ...]) -> None:
    folder = tmp_path / LOG.name
    shutil.copytree(LOG, folder)
    for number in gone:
        path_of(folder, number).unlink()
    state, missing = load(folder)
    assert (state.event_id, state.status) == (EVENTS, RunStatus.FINISHED)
    assert missing.damaged_lines == 0
    whole = fold_before(4)
    assert view_run(state, state.time_ns) == view_run(whole, whole.time_ns)
    assert view_cycles(state, state.time_ns) == view_cycles(whole, whole.time_ns)
    assert view_nodes(state) == view_nodes(whole)
    picture, _ = read_report(folder, state.time_ns)
    assert picture.missing is None or picture.missing.damaged_lines == 0


def test_what_was_read_is_written_as_the_version_of_now() -> None:
    for line in lines_of(2):
        event = decode_line(line)
        assert event.schema_version == SCHEMA_VERSION
        assert decode_line(encode_line(event)) == event


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"group":"0"', b'"group":"1"'),
        (b'"group":"0"', b'"group":0'),
        (b'"has_lost"', b'"has_lest"'),
        (b'"silent_s":', b'"silent_s":"0","x":'),
        (b'"lost_s":0.0', b'"lost_s":1e308'),
    ],
)
def test_an_old_state_that_was_changed_is_no_event(before: bytes, after: bytes) -> None:
    line = lines_of(2)[0]
    assert before in line
    with pytest.raises(msgspec.MsgspecError):
        decode_line(line.replace(before, after))


def test_old_records_of_the_api_are_those_of_now() -> None:
    state = fold_before(3)
    cycles = msgspec.json.decode((RECORDED / "cycles.json").read_bytes(), type=list[CycleOne])
    assert [convert_cycle(cycle) for cycle in cycles] == view_cycles(state, state.time_ns)
    assert msgspec.json.decode((RECORDED / "nodes.json").read_bytes(), type=list[Node]) == view_nodes(state)
