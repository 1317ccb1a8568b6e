"""What programs of schema version 2 wrote is still read: their logs, and the answers of their API.

`version_two/` was recorded with the last of them, commit 3997899, from the simulated run of seed 37, which has replica
groups: a log of three files, and the API's records at the end of the second file. Version 3 has one kind of event more,
so nothing of version 2 needs a conversion.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from ft_rendezvous.cli.report import read_report
from ft_rendezvous.state.model.events import StateTold, decode_line, encode_state
from ft_rendezvous.state.model.records import Cycle, Node, Run, RunStatus, UpdateTotals
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.log_reader import load
from tests.state.layout import fold_all, path_of

RECORDED = Path(__file__).parent / "version_two"
LOG = RECORDED / "sim-bc731dd6f91ae57c"
EVENTS, FILES = 73, (1, 2, 3)


def lines_of(number: int) -> list[bytes]:
    return path_of(LOG, number).read_bytes().splitlines(keepends=True)


def fold_before(number: int) -> RunState:
    """The fold of all events before a file, without the states that are told in between."""
    lines = [line for before in range(1, number) for line in lines_of(before)]
    return fold_all(RunState(), [line for line in lines if not isinstance(decode_line(line).event, StateTold)])


def test_the_log_is_of_version_two_and_knows_no_updates() -> None:
    lines = [json.loads(line) for number in FILES for line in lines_of(number)]
    assert {line["schema_version"] for line in lines} == {2}
    assert "UpdatesReported" not in {line["event"]["kind"] for line in lines}
    assert all("updates" not in line["event"]["state"] for line in lines if line["event"]["kind"] == "StateTold")


@pytest.mark.parametrize("number", FILES[1:])
def test_an_old_state_is_the_fold_of_the_events_before_it(number: int) -> None:
    told = decode_line(lines_of(number)[0]).event
    assert isinstance(told, StateTold)
    assert encode_state(told.state) == encode_state(fold_before(number))


@pytest.mark.parametrize("gone", [(), (1,), (1, 2), (2,)])
def test_an_old_log_is_read_whichever_of_its_files_are_there(tmp_path: Path, gone: tuple[int, ...]) -> None:
    folder = tmp_path / LOG.name
    shutil.copytree(LOG, folder)
    for number in gone:
        path_of(folder, number).unlink()
    state, missing = load(folder)
    assert (state.event_id, state.status, missing.damaged_lines) == (EVENTS, RunStatus.ERRORED, 0)
    whole = fold_before(4)
    run = view_run(state, state.time_ns)
    assert run == view_run(whole, whole.time_ns)
    assert run is not None
    assert (run.updates, run.recent_updates) == (UpdateTotals(), ())
    picture, _ = read_report(folder, state.time_ns)
    assert picture.missing is None or picture.missing.damaged_lines == 0


def test_old_records_of_the_api_are_those_of_now() -> None:
    state = fold_before(3)
    run = msgspec.json.decode((RECORDED / "run.json").read_bytes(), type=Run)
    assert run.schema_version == 2
    assert msgspec.structs.replace(run, schema_version=3) == view_run(state, state.time_ns)
    cycles = msgspec.json.decode((RECORDED / "cycles.json").read_bytes(), type=list[Cycle])
    assert cycles == view_cycles(state, state.time_ns)
    assert msgspec.json.decode((RECORDED / "nodes.json").read_bytes(), type=list[Node]) == view_nodes(state)
