"""The recorder with a real keeper process: what is told arrives in the export log, whatever becomes of the keeper."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest

from ft_rendezvous.config.settings import StateSettings
from ft_rendezvous.core.model import Placement
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.host import serve as host_serve
from ft_rendezvous.protocol.journal import CycleSealed, Looked
from ft_rendezvous.state.model.events import encode_state
from ft_rendezvous.state.record import keeper_pipe as pipe_module
from ft_rendezvous.state.record import recorder as recorder_module
from ft_rendezvous.state.record.keeper_pipe import KeeperConfig, KeeperPipe
from ft_rendezvous.state.record.recorder import Recorder
from tests.contract.benches import LONG_S
from tests.contract.live import run_settings
from tests.state.recording import Recording, record_seed
from tests.state.test_export_log import log_files, state_of, wait_for


def config(folder: Path) -> KeeperConfig:
    return KeeperConfig(folder=str(folder), log_bytes=1_000_000, addr="127.0.0.1", port=None, token=None)


def start(folder: Path, pipes: list[KeeperPipe]) -> Recorder:
    def start_pipe(stream):  # type: ignore[no-untyped-def]
        pipes.append(KeeperPipe(stream, config(folder), restart_s=0.05))
        return pipes[-1]

    return Recorder(start_pipe=start_pipe)


def tell(recorder: Recorder, recording: Recording) -> None:
    for event in recording.events:
        recorder(event.event)  # type: ignore[arg-type]


def test_what_is_told_is_in_the_log_when_the_recorder_is_closed(tmp_path: Path) -> None:
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    tell(recorder, recording)
    recorder.close()
    assert pipes[0].process is not None
    assert pipes[0].process.poll() == 0
    told, _ = recorder.look(0)
    written = state_of(log_files(tmp_path))
    assert written.event_id == len(recording.events)
    assert f'"event_id":{written.event_id}'.encode() in told
    assert encode_state(written) in told


def test_a_killed_keeper_is_replaced_and_told_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    half = len(recording.events) // 2
    for event in recording.events[:half]:
        recorder(event.event)  # type: ignore[arg-type]
    wait_for(lambda: sum(path.read_bytes().count(b"\n") for path in log_files(tmp_path)) == half)
    first = pipes[0].process
    assert first is not None
    first.kill()
    first.wait()
    for event in recording.events[half:]:
        recorder(event.event)  # type: ignore[arg-type]
    wait_for(lambda: pipes[0].process is not first and len(log_files(tmp_path)) == 2)
    recorder.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert f"exit code {-signal.SIGKILL}" in warnings[0]
    told, _ = recorder.look(0)
    assert encode_state(state_of(log_files(tmp_path))) in told


def test_a_keeper_that_stands_still_holds_nobody_up_and_is_told_everything_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WAITING_BYTES", 1_000)
    pipes = list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    keeper = wait_for_process(pipes[0])
    keeper.send_signal(signal.SIGSTOP)
    beginning = [event.event for event in record_seed(3).events[:2]]
    looks = [Looked(cycle_id=1, live=0, oldest_s=1.0, operations=number) for number in range(2_000)]
    for entry in (*beginning, *looks):  # More than a pipe holds.
        recorder(entry)  # type: ignore[arg-type]
    newest = f'"event_id":{len(beginning) + len(looks)}'.encode()
    wait_for(lambda: newest in recorder.look(0)[0])
    keeper.send_signal(signal.SIGCONT)
    recorder.close()
    assert keeper.poll() == 0
    assert encode_state(state_of(log_files(tmp_path))) in recorder.look(0)[0]


def test_a_keeper_that_never_goes_on_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipe_module, "END_TIMEOUT_S", 0.2)
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    keeper = wait_for_process(pipes[0])
    keeper.send_signal(signal.SIGSTOP)
    tell(recorder, recording)
    recorder.close()
    assert keeper.wait(LONG_S) == -signal.SIGKILL
    assert "did not end in time: the last events may be missing" in caplog.text


@pytest.mark.parametrize(
    "line", [b"\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"null\n", b'{"event_id":1e999}\n', b"{no event\n"]
)
def test_a_line_that_is_no_event_ends_the_keeper_and_the_next_one_is_told_everything(
    tmp_path: Path, line: bytes
) -> None:
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    half = len(recording.events) // 2
    for event in recording.events[:half]:
        recorder(event.event)  # type: ignore[arg-type]
    wait_for(lambda: sum(path.read_bytes().count(b"\n") for path in log_files(tmp_path)) == half)
    first = wait_for_process(pipes[0])
    assert first.stdin is not None
    os.write(first.stdin.fileno(), line)
    assert first.wait(LONG_S) != 0
    for event in recording.events[half:]:
        recorder(event.event)  # type: ignore[arg-type]
    recorder.close()
    assert encode_state(state_of(log_files(tmp_path))) in recorder.look(0)[0]


def wait_for_process(pipe: KeeperPipe) -> subprocess.Popen[bytes]:
    wait_for(lambda: pipe.process is not None)
    assert pipe.process is not None
    return pipe.process


def test_a_bug_in_what_is_told_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    recording = record_seed(3)
    recorder = Recorder()
    placement = Placement(("a node that never joined",), ())
    recorder(CycleSealed(cycle_id=1, placement=placement, roles={}, waited_s=0.0, master=""))
    wait_for(lambda: "training goes on" in caplog.text)
    tell(recorder, recording)
    recorder.close()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_a_keeper_that_cannot_be_started_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path, pipes)
    tell(recorder, recording)
    recorder.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "training goes on" in caplog.text


def test_a_keeper_imports_nothing_from_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logging.py").write_text("raise SystemExit('this is the logging of a training script')")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    recording, pipes = record_seed(3), list[KeeperPipe]()
    recorder = start(tmp_path / "state", pipes)
    tell(recorder, recording)
    recorder.close()
    assert state_of(log_files(tmp_path / "state")).event_id == len(recording.events)


def test_a_host_that_cannot_begin_leaves_no_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders: list[Recorder] = []

    class BrokenHost:
        def __init__(self, *_args: object, recorder: Recorder, **_others: object) -> None:
            recorders.append(recorder)
            raise StoreUnavailable("localhost:1", "it was stopped")

    monkeypatch.setattr(host_serve, "Host", BrokenHost)
    with pytest.raises(StoreUnavailable):
        host_serve.serve(run_settings(), 0, state=StateSettings(directory=str(tmp_path)))
    pipe = recorders[0]._pipe
    assert pipe is not None
    assert pipe.process is not None
    assert pipe.process.poll() is not None


def test_a_keeper_that_dies_at_the_end_of_a_run_is_replaced_at_once(tmp_path: Path) -> None:
    """How the run ended must be written, or it would look as if its coordinator had vanished."""
    recording, pipes = record_seed(3), list[KeeperPipe]()

    def start_pipe(stream):  # type: ignore[no-untyped-def]
        pipes.append(KeeperPipe(stream, config(tmp_path), restart_s=3600.0))
        return pipes[-1]

    recorder = Recorder(start_pipe=start_pipe)
    wait_for(lambda: pipes[0].process is not None)
    assert pipes[0].process is not None
    pipes[0].process.kill()
    tell(recorder, recording)
    recorder.close()
    assert state_of(log_files(tmp_path)).event_id == len(recording.events)
