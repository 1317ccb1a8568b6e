"""`ftr status`, `events` and `report` as processes, on the logs of simulated and made-up runs."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time

import pytest

from ft_rendezvous.state.model.records import RunStatus
from ft_rendezvous.state.model.view import view_nodes, view_run
from tests.cli.conftest import FTR, Shell
from tests.state.layout import lay_out, move_in_time, path_of
from tests.state.recording import eventful_seed, record_seed
from tests.state.story import tell_story

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CODES = {RunStatus.FINISHED: 0, RunStatus.ERRORED: 1, RunStatus.ABORTED: 3}


def now_lines(upto: str | None = None) -> list[bytes]:
    """The story so far, as if its last event had just happened."""
    story = tell_story()
    lines = story.lines[: story.marks[upto]] if upto else story.lines
    moved = move_in_time(lines, 0)
    length_ns = json.loads(moved[-1])["timestamp_ns"]
    return move_in_time(lines, time.time_ns() - length_ns)


def living_lines() -> list[bytes]:
    """The story as it will be: however long a test takes to tell it, its coordinator has not vanished."""
    return move_in_time(tell_story().lines, time.time_ns())


def find_seed(code: int) -> int:
    return next(seed for seed in range(200) if CODES.get(record_seed(seed).state.status) == code)


# --- status -----------------------------------------------------------------------------------------


def test_a_pipe_gets_plain_text(shell: Shell) -> None:
    lay_out(shell.place / "ft-state", now_lines("gathering"))
    done = shell.ftr("status", "ft-state")
    assert (done.returncode, done.stderr) == (0, "")
    assert not CONTROL.search(done.stdout)
    assert "SCHEDULING  llm-7b: waiting for 1 of 8 nodes\n" in done.stdout
    assert "7 of 8 nodes have arrived\n" in done.stdout
    assert "━" not in done.stdout


def test_a_terminal_gets_a_bar(shell: Shell) -> None:
    lay_out(shell.place / "ft-state", now_lines("gathering"))
    seen = on_a_terminal(shell, "status", "ft-state")
    assert "━" in seen
    assert "7 of 8 nodes have arrived" in seen


def on_a_terminal(shell: Shell, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    env = {**shell.env, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen([FTR, *arguments], cwd=shell.place, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Nobody has the other end any more.
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(timeout=30) == 0
    return seen.decode()


def test_json_is_the_state_itself(shell: Shell) -> None:
    recording = record_seed(eventful_seed())
    lay_out(shell.place / "ft-state", recording.lines, per_file=20)
    told = json.loads(shell.ftr("status", "ft-state", "--json").stdout)
    run = view_run(recording.state, recording.state.time_ns)
    assert run is not None
    assert told["run"]["event_id"] == recording.state.event_id
    assert told["run"]["status"] == run.status
    assert [node["incarnation"] for node in told["nodes"]] == [node.incarnation for node in view_nodes(recording.state)]
    assert [cycle["cycle_id"] for cycle in told["cycles"]] == [cycle.cycle_id for cycle in recording.state.cycles]
    assert told["missing"]["events"] == 0


@pytest.mark.parametrize("code", [0, 1, 3])
def test_watching_ends_with_the_verdict(shell: Shell, code: int) -> None:
    lay_out(shell.place / "ft-state", record_seed(find_seed(code)).lines)
    assert shell.ftr("status", "ft-state", "--watch").returncode == code
    assert shell.ftr("status", "ft-state").returncode == 0


@pytest.mark.parametrize("is_json", [False, True])
def test_a_living_run_is_watched_to_its_end(shell: Shell, is_json: bool) -> None:
    lines, marks = living_lines(), tell_story().marks
    folder = lay_out(shell.place / "ft-state", lines[: marks["gathering"]])
    process = shell.start_ftr("status", "ft-state", "--watch", *(["--json"] if is_json else []))
    assert process.stdout is not None
    first = process.stdout.readline()
    with path_of(folder, 1).open("ab") as file:
        file.write(b"".join(lines[marks["gathering"] : marks["restarting"]]))
        file.flush()
        second = process.stdout.readline()
        file.write(b"".join(lines[marks["restarting"] :]))
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    if is_json:
        told = [json.loads(line) for line in (first, second, *rest.splitlines())]
        assert [each["run"]["status"] for each in told] == ["SCHEDULING", "RESTARTING", "FINISHED"]
    else:
        assert "SCHEDULING cycle 1  llm-7b: waiting for 1 of 8 nodes" in first
        assert "RESTARTING cycle 2  llm-7b: workers failed on infra rank 3" in second
        assert rest.startswith("FINISHED  llm-7b\n")
        assert not CONTROL.search(first + second + rest)


def test_a_vanished_coordinator_is_aborted_with_the_last_known_state(shell: Shell) -> None:
    story = tell_story()
    lay_out(shell.place / "ft-state", story.lines[: story.marks["training"]])
    done = shell.ftr("status", "ft-state", "--watch")
    assert done.returncode == 3
    detail = "its coordinator vanished; before that: RUNNING, 8 nodes train in cycle 3"
    assert done.stdout.startswith(f"ABORTED  llm-7b: {detail}\n")
    assert "nodes, as last known" in done.stdout
    assert "infra rank 8 at 10.0.0.18 pid 4208  rack-b  active     ALIVE" in done.stdout


def test_what_is_missing_is_said_and_the_verdict_is_kept(shell: Shell) -> None:
    story = tell_story()
    folder = lay_out(shell.place / "ft-state", story.lines)
    path_of(folder, 1).write_bytes(b"".join([*story.lines[:50], b"\0\0\0\n", *story.lines[51:]])[:-20])
    done = shell.ftr("status", "ft-state", "--watch")
    assert done.returncode == 0
    assert done.stdout.startswith("FINISHED  llm-7b\n")
    told = done.stdout.splitlines()[-1]
    count = len(story.lines) - 1 - 50
    assert told == (
        f"incomplete  of its log, {count} events are missing, 1 line is damaged, the last line is torn; "
        "what happened last is not known"
    )


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["nowhere"], "there is no directory 'nowhere': give a run's state_dir"),
        (["empty"], "no run is recorded in empty: is this the state_dir of its --rdzv-conf?"),
        (["ft-state", "--run", "other"], "no run 'other' is recorded in ft-state: there are sim-"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1 cannot be reached"),
        (["http://"], "it looks like http://HOST:PORT"),
        (["newer"], "schema version 7, and this ft-rendezvous reads up to 3"),
    ],
)
@pytest.mark.parametrize("command", ["status", "events"])
def test_what_cannot_be_seen_is_told_in_one_line(shell: Shell, command: str, arguments: list[str], fact: str) -> None:
    lay_out(shell.place / "ft-state", record_seed(3).lines)
    lay_out(shell.place / "newer", [line.replace(b'version":3', b'version":7') for line in record_seed(3).lines])
    (shell.place / "empty").mkdir()
    done = shell.ftr(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert fact in done.stderr


def test_a_log_of_which_nothing_can_be_read(shell: Shell) -> None:
    (shell.place / "damaged").mkdir()
    path_of(shell.place / "damaged", 1).write_bytes(b"what is this\n")
    done = shell.ftr("status", "damaged")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing of this log can be read: 1 line is damaged" in done.stderr
    done = shell.ftr("events", "damaged")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "ftr: of its log, 1 line is damaged\n")


def test_ten_thousand_nodes_fit_on_a_page(shell: Shell) -> None:
    story = tell_story()
    lines = story.lines[: story.marks["a spare is silent"]]
    crowd = next(line for line in lines if b'"NodeJoined"' in line and b'"infra_rank":9' in line)
    more = []
    for number in range(10_000):
        event = json.loads(crowd)
        event["event_id"], event["timestamp_ns"] = len(lines) + number + 1, json.loads(lines[-1])["timestamp_ns"]
        event["event"] |= {
            "incarnation": f"f{number:015d}",
            "domain": f"rack-{number // 16}",
            "infra_rank": 10 + number,
        }
        more.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
    lay_out(shell.place / "ft-state", [*lines, *more])
    done = shell.ftr("status", "ft-state")
    assert "10,010 live nodes\n" in done.stdout
    assert "625 domains, each: rack-[0-624]" in done.stdout
    assert len(done.stdout.splitlines()) < 60
    assert "infra rank 6 at 10.0.0.16 pid 4506" in done.stdout, "who is silent is named"
    assert len(shell.ftr("status", "ft-state", "--nodes").stdout.splitlines()) > 10_000


# --- events -----------------------------------------------------------------------------------------


def test_events_are_printed_as_they_are(shell: Shell) -> None:
    recording = record_seed(eventful_seed())
    lay_out(shell.place / "ft-state", recording.lines, per_file=20)
    assert shell.ftr("events", "ft-state", "--json").stdout.encode() == b"".join(recording.lines)
    after = shell.ftr("events", "ft-state", "--json", "--after", "30")
    assert after.stdout.encode() == b"".join(recording.lines[30:])


def test_events_are_followed_to_the_end_of_the_run(shell: Shell) -> None:
    lines, marks = living_lines(), tell_story().marks
    folder = lay_out(shell.place / "ft-state", lines[: marks["restarting"]])
    process = shell.start_ftr("events", "ft-state", "--follow", "--after", str(marks["restarting"] - 1))
    assert process.stdout is not None
    assert "1 survivor is stopping workers" in process.stdout.readline()
    with path_of(folder, 1).open("ab") as file:
        file.write(b"".join(lines[marks["restarting"] :]))
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert "the run ended: succeeded\n" in out
    assert out.splitlines()[-1].endswith(
        "infra rank 6 at 10.0.0.16 pid 4506 went, left: run 'llm-7b' is closed: succeeded"
    )


def test_whoever_stops_listening_is_not_told_of_an_error(shell: Shell) -> None:
    lay_out(shell.place / "ft-state", tell_story().lines)
    done = shell.run("bash", "-c", f"for i in 1 2 3; do {FTR} events ft-state --json --follow | head -1; done")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == ""


# --- report -----------------------------------------------------------------------------------------


def test_a_report_is_a_page_and_a_picture(shell: Shell) -> None:
    lay_out(shell.place / "ft-state", tell_story().lines)
    done = shell.ftr("report", "ft-state", "--out", "there", timeout_s=60)
    assert (done.returncode, done.stdout) == (0, "there/report.md\nthere/timeline.png\n")
    page = (shell.place / "there" / "report.md").read_text()
    assert "![timeline of llm-7b](timeline.png)" in page
    assert (shell.place / "there" / "timeline.png").read_bytes().startswith(b"\x89PNG")
    printed = shell.ftr("report", "ft-state").stdout
    assert printed == page.replace("![timeline of llm-7b](timeline.png)\n\n", "")


def test_a_report_without_matplotlib_says_what_to_install(shell: Shell) -> None:
    lay_out(shell.place / "ft-state", tell_story().lines)
    (shell.place / "hidden" / "matplotlib").mkdir(parents=True)
    (shell.place / "hidden" / "matplotlib" / "__init__.py").write_text("raise ImportError('not here')\n")
    path = f"{shell.place / 'hidden'}:{os.environ.get('PYTHONPATH', '')}"
    done = shell.ftr("report", "ft-state", "--out", "there", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "there/report.md\n")
    assert done.stderr == "ftr: no plot without matplotlib: pip install 'ft-rendezvous[plots]'\n"
    assert "timeline.png" not in (shell.place / "there" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "fact"), [(["nowhere"], "nowhere cannot be read: No such file"), ([], "Missing")]
)
def test_a_report_of_nothing_is_refused(shell: Shell, arguments: list[str], fact: str) -> None:
    done = shell.ftr("report", *arguments)
    assert done.returncode == 2
    assert fact in done.stderr
