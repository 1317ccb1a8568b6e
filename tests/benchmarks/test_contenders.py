"""Every contender does the work it is timed for, and a check notices when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from benchmarks import arriving, form, machine, ours, read, runs
from benchmarks.__main__ import main
from benchmarks.baselines import c10d, nvrx, raw
from benchmarks.baselines.slots import COUNT_KEY, READERS, Reader
from benchmarks.children import prepare_environment, serving
from benchmarks.crowd import Formed, Seat
from benchmarks.measure import OURS, Case, Sample, WrongResult
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from benchmarks.registry import BENCHMARKS
from benchmarks.report import warnings_of
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys

COUNT = 50


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


@pytest.fixture
def store() -> Iterator[TCPStore]:
    with serving(raw.serve) as port:
        yield TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False)


@pytest.mark.parametrize("batch", [None, 7, COUNT, 1_024])
@pytest.mark.parametrize("name", READERS)
def test_both_layouts_hold_the_same_nodes(store: TCPStore, name: str, batch: int | None) -> None:
    read.fill(store, COUNT)
    assert read.sample_ours(store, COUNT) > 0
    reader = replace(READERS[name], batch=batch)
    assert read.sample_slots(store, COUNT, reader) > 0
    assert [node.incarnation for node in reader.read(store)] == [node.incarnation for node in make_arrivals(COUNT)]


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_missing_node_is_noticed_in_either_layout(store: TCPStore, reader: Reader) -> None:
    read.fill(store, COUNT)
    store.set(Keys(EPOCH).arrived(CYCLE_ID), str(COUNT + 1))
    store.set(COUNT_KEY, str(COUNT - 1))
    with pytest.raises(WrongResult):
        read.sample_ours(store, COUNT)
    with pytest.raises(WrongResult):
        read.sample_slots(store, COUNT, reader)


@pytest.mark.parametrize(("ratios", "is_met"), [([9.0, 10.0, 90.0], True), ([14.0, 15.1, 16.0], False)])
def test_time_should_grow_with_the_number_of_nodes_and_not_faster(ratios: list[float], is_met: bool) -> None:
    found = read.judge_growth("first read", 10_000, 100_000, ratios)
    assert found.value == pytest.approx(ratios[1] / 10)
    assert (found.case, found.is_met) == ("10,000 to 100,000 nodes, first read", is_met)


def test_a_reader_that_takes_everything_for_consistent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credulous(moves.LogReader):
        def take(self, values: Sequence[bytes]) -> moves.Reading:
            reading = super().take(values)
            self.is_consistent = True
            return reading

    honest = arriving.read_while_arriving(2_000)
    assert (honest.wrong, honest.partial > 10) == (0, True)
    monkeypatch.setattr(moves, "LogReader", Credulous)
    assert arriving.read_while_arriving(2_000).wrong > 0


@pytest.mark.parametrize(
    ("serve", "contender"),
    [
        (partial(serving, ours.serve, 3), ours),
        (partial(serving, raw.serve), raw),
        (partial(serving, raw.serve), c10d),
        pytest.param(
            partial(serving, raw.serve),
            nvrx,
            marks=pytest.mark.skipif(nvrx.installed_version() is None, reason=f"{nvrx.PACKAGE} is not installed"),
        ),
    ],
    ids=["ours", "raw", "c10d", "nvrx"],
)
def test_a_contender_forms_a_world(serve, contender) -> None:  # type: ignore[no-untyped-def]
    assert form.sample(3, serve, contender.form) > 0


def test_who_is_not_installed_takes_no_part_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrx, "installed_version", lambda: None)
    with form.cases(is_quick=False)[0].prepare() as contenders:
        assert "c10d" in contenders
        assert "nvrx" not in contenders
    assert any("nvidia-resiliency-ext is not installed" in warning for warning in warnings_of(machine.describe()))


@pytest.mark.parametrize(
    "seats",
    [
        [Seat(0, 2, "a:1"), Seat(0, 2, "a:1")],
        [Seat(0, 2, "a:1")],
        [Seat(0, 2, "a:1"), Seat(1, 2, "b:1")],
        [Seat(0, 2, "a:1"), Seat(1, 3, "a:1")],
    ],
    ids=["rank twice", "rank missing", "two masters", "two sizes"],
)
def test_what_is_not_one_world_is_noticed(seats: list[Seat]) -> None:
    with pytest.raises(WrongResult):
        form.check(Formed(0.1, seats), 2)


def test_the_command_writes_a_file_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    assert main(["--quick", "--only", "codec", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert content["machine"]["torch"]
    assert content["is_quick"]
    assert {row["contender"] for row in content["rows"]} == {"ours", "JSON", "bare msgspec"}
    assert "decode 10,000" in capsys.readouterr().out


def test_a_run_that_is_interrupted_keeps_what_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def interrupt() -> Iterator[Mapping[str, Sample]]:
        raise KeyboardInterrupt
        yield {}

    @contextmanager
    def race() -> Iterator[Mapping[str, Sample]]:
        yield {OURS: lambda: 1.0}

    monkeypatch.setitem(BENCHMARKS, "codec", lambda _: [Case("codec", "first", 2, race)])
    monkeypatch.setitem(BENCHMARKS, "read", lambda _: [Case("read", "second", 1, interrupt)])
    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        main(["--only", "codec", "--only", "read", "--json", str(path)])
    run = runs.read(path)
    assert [row.seconds for row in run.rows] == [(1.0, 1.0)]
    assert run.is_part, "it must not be taken for a whole one"
    assert str(path) in capsys.readouterr().err
