"""A log that was cut, flipped or robbed of files is read as far as it can be, and no further."""

from __future__ import annotations

import tempfile
import threading
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.errors import StateUnavailable
from ft_rendezvous.state.model.events import decode_line, encode_state, encode_state_line
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.log_reader import EventLogReader, Gap, follow_log, load, read_events
from ft_rendezvous.state.record.folders import choose_run, find_runs
from tests.state.layout import fold_all, lay_out, path_of, split
from tests.state.recording import eventful_seed, record_seed

SEEDS = (3, 5, 8, 10, 11)
record = cache(lambda seed: tuple(record_seed(seed).lines))
seeds = st.sampled_from(SEEDS)
sizes = st.integers(3, 40)


def states_after(lines: tuple[bytes, ...]) -> list[bytes]:
    """The state after each number of events, encoded."""
    state, found = RunState(), [encode_state(RunState())]
    for line in lines:
        state = fold_all(state, [line])
        found.append(encode_state(state))
    return found


known_states = cache(lambda seed: states_after(record(seed)))


def read_all(folder: Path) -> tuple[RunState, EventLogReader]:
    reader = EventLogReader(folder)
    for _ in reader.read():
        pass
    reader.close()
    return reader.state, reader


def show(state: RunState) -> None:
    """What was read can be shown, whatever it is."""
    view_run(state, state.time_ns)
    view_cycles(state, state.time_ns)
    view_nodes(state)


def encoded(state: RunState) -> bytes:
    return encode_state(state)


# --- a whole log ------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_file", [7, 20, 1_000])
def test_a_whole_log_is_the_fold_of_all_its_events(tmp_path: Path, per_file: int) -> None:
    folder = lay_out(tmp_path, record(eventful_seed()), per_file=per_file)
    state, reader = read_all(folder)
    assert encoded(state) == known_states(eventful_seed())[-1]
    assert reader.missing.is_empty()
    assert [event.event_id for event in read_events(folder)] == list(range(1, len(record(eventful_seed())) + 1))
    quick, missing = load(folder)
    assert encoded(quick) == known_states(eventful_seed())[-1]
    assert missing.is_empty()


def test_a_reader_who_wants_the_newest_does_not_read_old_files(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, record(eventful_seed()), per_file=20)
    for number in (1, 2):
        path_of(folder, number).write_bytes(b"not to be read\n")
    state, missing = load(folder)
    assert encoded(state) == known_states(eventful_seed())[-1]
    assert missing.is_empty()


def test_events_after_one_are_read_from_the_file_that_has_them(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, record(eventful_seed()), per_file=20)
    path_of(folder, 1).write_bytes(b"not to be read\n")
    reader = EventLogReader(folder, after=30)
    assert [told.event.event_id for told in reader.read()] == list(range(21, len(record(eventful_seed())) + 1))
    assert reader.missing.is_empty()


# --- damage -----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(seed=seeds, per_file=sizes, data=st.data())
def test_cut_at_any_byte_it_is_the_fold_up_to_there(seed: int, per_file: int, data: st.DataObject) -> None:
    files = split(record(seed), per_file)
    number = data.draw(st.integers(1, len(files)), label="file")
    content = b"".join(files[number - 1])
    cut = data.draw(st.integers(0, len(content)), label="byte")
    with tempfile.TemporaryDirectory() as place:
        folder = lay_out(Path(place), record(seed), per_file=per_file)
        for later in range(number + 1, len(files) + 1):
            path_of(folder, later).unlink()
        path_of(folder, number).write_bytes(content[:cut])
        state, reader = read_all(folder)
        kept = content[:cut].split(b"\n")
        # A line is whole when all of its object is there, with its newline or without.
        whole = sum(1 for line, part in zip(files[number - 1], kept, strict=False) if line == part + b"\n")
        expected = (number - 1) * per_file + max(0, whole - (number > 1))
        assert encoded(state) == known_states(seed)[expected]
        assert reader.missing.events == 0
        assert encoded(load(folder)[0]) == known_states(seed)[expected]


@settings(max_examples=250, deadline=None)
@given(seed=seeds, per_file=sizes, data=st.data())
def test_with_flipped_bytes_it_never_raises_and_never_guesses(seed: int, per_file: int, data: st.DataObject) -> None:
    files = split(record(seed), per_file)
    number = data.draw(st.integers(1, len(files)), label="file")
    content = bytearray(b"".join(files[number - 1]))
    for _ in range(data.draw(st.integers(1, 3), label="flips")):
        content[data.draw(st.integers(0, len(content) - 1), label="byte")] ^= data.draw(st.integers(1, 255), label="by")
    with tempfile.TemporaryDirectory() as place:
        folder = lay_out(Path(place), record(seed), per_file=per_file)
        path_of(folder, number).write_bytes(content)
        state, reader = read_all(folder)
        show(state)
        show(load(folder)[0])
        original = {line.strip() for line in files[number - 1]}
        changed = [line for line in bytes(content).split(b"\n") if line and line not in original]
        if not any(_is_an_event(line) for line in changed):
            # Every change was noticed: the state is that of some moment of the run, and the damage is counted.
            assert encoded(state) == known_states(seed)[state.event_id]
            assert reader.missing.damaged_lines > 0 or not changed or reader.missing.torn
            if number < len(files):
                assert encoded(state) == known_states(seed)[-1]


def _is_an_event(line: bytes) -> bool:
    try:
        decode_line(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(seed=seeds, per_file=sizes, data=st.data())
def test_without_some_of_its_files_the_others_are_read(seed: int, per_file: int, data: st.DataObject) -> None:
    lines = record(seed)
    count = len(split(lines, per_file))
    gone = data.draw(st.sets(st.integers(1, count), max_size=count - 1), label="gone")
    with tempfile.TemporaryDirectory() as place:
        folder = lay_out(Path(place), lines, per_file=per_file)
        for number in gone:
            path_of(folder, number).unlink()
        state, reader = read_all(folder)
        newest = max(number for number in range(1, count + 1) if number not in gone)
        assert encoded(state) == known_states(seed)[min(newest * per_file, len(lines))]
        # What is gone at the end nobody knows of.
        assert reader.missing.events == per_file * len([number for number in gone if number < newest])


def test_after_a_damaged_line_nothing_counts_until_the_state_is_told_again(tmp_path: Path) -> None:
    lines = record(eventful_seed())
    folder = lay_out(tmp_path, lines, per_file=20)
    path = path_of(folder, 2)
    files = split(lines, 20)
    path.write_bytes(b"".join([*files[1][:6], b'{"event_id":26,#\n', *files[1][7:]]))
    reader = EventLogReader(folder)
    ids = [told.event.event_id for told in reader.read()]
    assert ids == [*range(1, 26), 40, *range(41, len(lines) + 1)]
    assert reader.missing.events == 15
    assert reader.missing.damaged_lines == 1
    assert reader.missing.gaps == [Gap(26, 40)]
    assert not reader.missing.at_end
    assert encoded(reader.state) == known_states(eventful_seed())[-1]


def test_a_verdict_behind_the_damage_is_heard(tmp_path: Path) -> None:
    """The state stays at what was read without a gap, but nobody says that its coordinator vanished."""
    lines = [*record(eventful_seed())[:30], *record(eventful_seed())[31:]]
    folder = tmp_path / "sim-1"
    folder.mkdir()
    path_of(folder, 1).write_bytes(b"".join(lines))
    state, reader = read_all(folder)
    assert encoded(state) == known_states(eventful_seed())[30]
    assert reader.verdict is not None
    assert reader.missing.events == len(lines) + 1 - 30
    assert reader.missing.at_end
    assert not reader.has_vanished(state.time_ns + 1_000 * NS)


def test_an_event_that_cannot_follow_leaves_the_state_before_it(tmp_path: Path) -> None:
    """JSON all the same, of a node that never was: half an event must not stay behind."""
    lines = list(record(eventful_seed()))
    place = next(place for place, line in enumerate(lines) if b'"CycleSealed"' in line)
    seal = decode_line(lines[place]).event
    lines[place] = lines[place].replace(seal.placement.ranks[-1].encode(), b"f" * 16)  # type: ignore[union-attr]
    folder = tmp_path / "sim-1"
    folder.mkdir()
    path_of(folder, 1).write_bytes(b"".join(lines))
    state, reader = read_all(folder)
    assert encoded(state) == known_states(eventful_seed())[place]
    assert reader.missing.damaged_lines == 1


def test_a_file_of_zeros_is_damage(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, record(eventful_seed()), per_file=20)
    path_of(folder, 2).write_bytes(bytes(3_000_000))
    state, reader = read_all(folder)
    assert encoded(state) == known_states(eventful_seed())[-1]
    assert (reader.missing.events, reader.missing.damaged_lines) == (20, 1)


def test_an_empty_log_is_an_empty_state(tmp_path: Path) -> None:
    folder = tmp_path / "job-1"
    folder.mkdir()
    path_of(folder, 1).touch()
    state, missing = load(folder)
    assert encoded(state) == known_states(3)[0]
    assert missing.is_empty()


@pytest.mark.parametrize("count", [1, 2, 30])
def test_a_newer_schema_is_told(tmp_path: Path, count: int) -> None:
    lines = [line.replace(b'"schema_version":3', b'"schema_version":4') for line in record(eventful_seed())[:count]]
    folder = tmp_path / "job-1"
    folder.mkdir()
    path_of(folder, 1).write_bytes(b"".join(lines))
    with pytest.raises(StateUnavailable, match="schema version 4, and this ft-rendezvous reads up to 3: read it with"):
        load(folder)


def test_a_newer_schema_is_told_whatever_else_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "job-1"
    folder.mkdir()
    line = b'{"event_id":1,"timestamp_ns":1,"source_type":"dream","schema_version":9,"event":{"kind":"Dreamt"}}\n'
    path_of(folder, 1).write_bytes(line)
    with pytest.raises(StateUnavailable, match="schema version 9"):
        load(folder)


# --- following --------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_file", [5, 1_000])
def test_what_is_written_is_followed_across_files_until_the_run_ends(tmp_path: Path, per_file: int) -> None:
    """Written byte for byte in odd pieces, so that lines are met torn."""
    files = split(record(eventful_seed()), per_file)
    folder = tmp_path / "sim-1"
    folder.mkdir()
    path_of(folder, 1).touch()
    seen: list[int] = []

    def read() -> None:
        seen.extend(told.event.event_id for told in follow_log(folder, poll_s=0.001, clock_ns=lambda: 0))

    thread = threading.Thread(target=read)
    thread.start()
    for number, lines in enumerate(files, start=1):
        content = b"".join(lines)
        with path_of(folder, number).open("ab", buffering=0) as file:
            for start in range(0, len(content), 97):
                file.write(content[start : start + 97])
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert seen == list(range(1, len(record(eventful_seed())) + 1))


def test_a_torn_line_that_its_writer_takes_back_is_no_damage(tmp_path: Path) -> None:
    """A full disk: half a line is cut off again, and when there is room the state is told."""
    folder = lay_out(tmp_path, record(eventful_seed())[:30])
    path = path_of(folder, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + record(eventful_seed())[30][:-40])
    reader = EventLogReader(folder)
    assert len(list(reader.read())) == 30
    assert reader.missing.torn
    told = encode_state_line(fold_all(RunState(), record(eventful_seed())[:33]))
    path.write_bytes(whole + told + record(eventful_seed())[33])
    assert [each.event.event_id for each in reader.read()] == [33, 34]
    assert reader.missing.damaged_lines == 0
    assert reader.missing.gaps == [Gap(31, 33)]
    assert not reader.missing.torn
    assert encoded(reader.state) == known_states(eventful_seed())[34]


def test_following_ends_when_the_coordinator_has_vanished(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, record(eventful_seed())[:40])
    last_ns = decode_line(record(eventful_seed())[39]).timestamp_ns
    began = decode_line(record(eventful_seed())[0]).event
    leases_ns = round(3 * NS * float(began.settings["lease_timeout"]))  # type: ignore[union-attr]
    times = iter([last_ns, last_ns + leases_ns, last_ns + leases_ns + 1])
    slept: list[float] = []
    told = list(follow_log(folder, after=38, clock_ns=lambda: next(times), sleep=slept.append))
    assert [each.event.event_id for each in told] == [39, 40]
    assert [each.line for each in told] == list(record(eventful_seed())[38:40])
    assert len(slept) == 3


# --- folders ----------------------------------------------------------------------------------------


def test_runs_are_found_newest_first_by_name_id_or_folder(tmp_path: Path) -> None:
    older = lay_out(tmp_path, record(3), name="job_7-aaaa")
    newer = lay_out(tmp_path, record(5), name="job_8-bbbb")
    path = path_of(newer, 1)
    path.write_bytes(path.read_bytes().replace(b'"timestamp_ns":18', b'"timestamp_ns":19'))
    told = encode_state_line(fold_all(RunState(), record(eventful_seed())))
    half = tmp_path / "job_6-cccc"
    half.mkdir()
    path_of(half, 4).write_bytes(told.replace(b'"timestamp_ns":18', b'"timestamp_ns":17', 1))
    (tmp_path / "something else").mkdir()
    (tmp_path / "a file").touch()
    runs = find_runs(tmp_path)
    assert [run.path for run in runs] == [newer, older, half]
    assert find_runs(newer) == runs[:1]
    assert choose_run(tmp_path, None) == runs[0]
    for called in (runs[1].run_id, "job_7-aaaa"):
        assert choose_run(tmp_path, called) == runs[1]
    assert choose_run(tmp_path, "sim") == runs[0]
    assert choose_run(tmp_path, "job_6") == choose_run(tmp_path, "cccc") == runs[2]
    with pytest.raises(StateUnavailable, match=r"no run 'nobody' is recorded in .*: there are job_8-bbbb, job_7-aaaa"):
        choose_run(tmp_path, "nobody")
    with pytest.raises(StateUnavailable, match=r"no run is recorded in .*: is this the state_dir"):
        choose_run(tmp_path / "something else", None)
    with pytest.raises(StateUnavailable, match="cannot be read: No such file"):
        find_runs(tmp_path / "nowhere")
