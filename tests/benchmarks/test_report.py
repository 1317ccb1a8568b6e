"""The docs show what `python -m benchmarks report` renders, and it renders whatever a run has."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import pages, plots, publish, report, runs, scale
from benchmarks.__main__ import main
from benchmarks.machine import ROOT
from benchmarks.measure import Finding
from benchmarks.report import Row, digits
from benchmarks.runs import NodeCase, Run, parse_case
from tests.benchmarks.test_scale import COSTS

PAGE = (publish.DOCS / "benchmarks.md").read_text()
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def shown() -> list[Run]:
    """The runs that the page names."""
    names = dict.fromkeys(re.findall(r"benchmarks/results/[\w-]+\.json", PAGE))
    assert names, "the page does not say where its numbers come from"
    return [runs.read(ROOT / name) for name in names]


def test_the_page_is_what_report_renders(shown: list[Run]) -> None:
    assert pages.page_of(shown) == PAGE, "run `python -m benchmarks report`"


def test_every_image_that_is_shown_exists(shown: list[Run]) -> None:
    images = set(re.findall(r"\]\((images/[^)]+)\)", pages.page_of(shown)))
    assert images
    for name in images:
        assert (publish.DOCS / name).read_bytes().startswith(PNG)


def test_the_newest_whole_run_is_shown_with_what_it_lacks(shown: list[Run]) -> None:
    assert shown == runs.find_shown(), "run `python -m benchmarks report`"
    whole, *parts = shown
    assert not whole.is_part
    assert all(part.is_part and not part.is_quick for part in parts)
    repeated = [part for part in parts if set(part.benchmarks) & set(whole.benchmarks)]
    assert all(part.machine["commit"] != whole.machine["commit"] for part in repeated)


# --- a made-up run ----------------------------------------------------------------------------------

MACHINE = {
    "commit": "61c85db0d6ff069a7aa579bce4fdc4f897081079",
    "has_local_changes": False,
    "torch": "2.13.0",
    "python": "3.11.7",
    "platform": "Linux",
    "cores": 2,
    "resolver_options": None,
    "load_1min": 0.5,
    "reverse_dns_s": {"127.0.0.1": 0.0004},
}


def row(benchmark: str, case: str, contender: str, median_s: float | None, ratio: float | None = 1.0) -> Row:
    samples = () if median_s is None else (median_s / 2, median_s, median_s * 2)
    return Row(benchmark, case, contender, samples, median_s, None if median_s else 60.0, ratio)


ROWS = [
    row("codec", "decode 10,000 arrivals", "ours", 0.0034),
    row("read", "1,000 nodes, first read", "ours", 0.001),
    row("read", "10,000 nodes, first read", "ours", 0.0034),
    row("read", "10,000 nodes, first read", "slots", 0.034, 10.0),
    row("form", "8 nodes", "ours", 0.0195),
    row("form", "8 nodes", "c10d", 1.295, 66.4),
    row("form", "1,024 nodes", "ours", 2.5),
    row("form", "1,024 nodes", "c10d", None, 24.0),
    row("form", "4,096 nodes, generated", "ours", 3.5),
    row("recovery", "a node is killed", "ours", 5.5),
    row("recovery", "a node is killed", "c10d", None, 10.9),
]
FINDINGS = [
    Finding("read", "10,000 nodes arrive meanwhile", "wrong snapshots", 0, "", "0", True),
    Finding("steady", "1,000 nodes", "CPU of the host", 0.31, "cores", "at most 0.25", False),
    Finding("new", "a case", "retries", 12_345, ""),
    *scale.tell(COSTS, {1_000: 0.1}),
]
RUN = Run("benchmarks/results/made-up.json", MACHINE, False, False, ROWS, FINDINGS)


def write(path: Path, **more: Any) -> Path:
    content = {
        "machine": MACHINE,
        "is_quick": False,
        "rows": [found.as_dict() for found in ROWS],
        "findings": [asdict(found) for found in FINDINGS],
    }
    path.write_text(json.dumps({**content, **more}))
    return path


def test_a_page_tells_times_spreads_and_ratios() -> None:
    page = pages.page_of([RUN])
    assert "| 8 nodes | **ours** | 19.5 | 9.75 to 39 |  |" in page
    assert "|  | c10d | 1,295 | 648 to 2,590 | 66.4 |" in page
    assert "|  | c10d | did not finish in 60 s |  | > 24 |" in page
    assert "| commit | `61c85db0d6ff` |" in page


def test_a_page_tells_which_targets_were_missed() -> None:
    page = pages.page_of([RUN])
    assert "| 1,000 nodes | CPU of the host | 0.310 cores | at most 0.25 | **missed** |" in page
    assert "| 10,000 nodes arrive meanwhile | wrong snapshots | 0 | 0 | met |" in page
    assert "| a case | retries | 12,345 |  |  |" in page


def test_a_page_has_predicted_and_measured_worlds_with_the_error() -> None:
    model = scale.Model(COSTS)
    here_s, elsewhere_s = model.form_generated(4_096), model.form(4_096)
    error = f"{(here_s / 3.5 - 1) * 100:+.0f} %"
    expected = (
        f"| 4,096 nodes, generated, ours | 3.50 s | {pages.short_s(here_s)} | {error} | {pages.short_s(elsewhere_s)} |"
    )
    assert expected in pages.page_of([RUN])


def test_the_models_error_is_printed_after_a_run() -> None:
    told = pages.errors_of(ROWS, FINDINGS)
    assert [line.partition(": ")[0] for line in told] == [
        "store host's CPU, 1,000 nodes",
        "8 nodes, ours",
        "1,024 nodes, ours",
        "4,096 nodes, generated, ours",
    ]
    assert " %; nodes elsewhere " in told[1]
    assert pages.errors_of(ROWS, []) == []


def test_the_page_begins_with_what_matters() -> None:
    section = pages.page_of([RUN]).partition("## Machine")[0]
    assert "| 1,024 nodes | 2.50 s | did not finish in 60 s |" in section
    assert "| 10,000 nodes, first read | 3.40 ms | 10 × |" in section
    assert "1,000 nodes, first read" not in section
    assert "1 of 2 targets were met; missed: steady, 1,000 nodes: CPU of the host." in section
    assert "for a world of 100,000 nodes; of the CPU time that the store host takes for 1,000 to 1,000" in section


def test_what_a_run_does_not_have_is_left_out() -> None:
    part = replace(RUN, rows=[found for found in ROWS if found.benchmark == "codec"], findings=[])
    page = pages.page_of([part])
    assert "## codec" in page
    assert "## form" not in page
    assert "images/" not in page
    assert "predicts" not in page


def test_a_run_with_groups_has_a_section_and_names_the_version_of_torchft() -> None:
    case = "3 groups + 1 spare, a node is killed: longest gap"
    rows = [row("groups", case, "ours", 1.1), row("groups", case, "torchft", 5.1, 4.6)]
    lost = Finding("groups", "3 groups + 1 spare, a node is killed", "ours: steps lost, median", 7.0, "steps")
    run = replace(RUN, machine={**MACHINE, "torchft": "0.2.0"}, rows=rows, findings=[lost])
    page = pages.page_of([run])
    assert f"| {case} | 1.10 s | 4.60 × |" in page
    assert "|  | torchft 0.2.0 | 5,100 | 2,550 to 10,200 | 4.60 |" in page
    assert "ours: steps lost, median | 7 steps |" in page
    assert "| torchft | 0.2.0 |" in page
    assert "- *torchft* trains with replica groups" in page
    assert "images/benchmark-groups.png" in page
    assert "- *torchft*" not in pages.page_of([RUN])


def test_a_run_on_ray_has_a_section_and_names_the_version_of_ray_train() -> None:
    case = "2 + 1 machines, one is killed: trained"
    rows = [row("ray", case, "ours", 8.4), row("ray", case, "Ray Train", 18.0, 2.25)]
    page = pages.page_of([replace(RUN, machine={**MACHINE, "ray[train]": "2.60.0"}, rows=rows, findings=[])])
    assert f"| {case} | 8.40 s | 2.25 × |" in page
    assert "|  | Ray Train 2.60.0 | 18,000 | 9,000 to 36,000 | 2.25 |" in page
    assert "| ray[train] | 2.60.0 |" in page
    assert "- *Ray Train* is the trainer of Ray" in page
    assert "images/benchmark-ray.png" in page
    assert "- *Ray Train*" not in pages.page_of([RUN])


def test_a_contender_that_is_a_package_is_shown_with_its_version() -> None:
    rows = [row("form", "8 nodes", "ours", 0.0195), row("form", "8 nodes", "nvrx", 1.3, 66.7)]
    page = pages.page_of([replace(RUN, machine={**MACHINE, "nvidia-resiliency-ext": "0.4.1"}, rows=rows)])
    assert "|  | nvrx 0.4.1 | 1,300 |" in page
    assert "| nvrx |" not in page
    assert "|  | nvrx | 1,300 |" in pages.page_of([replace(RUN, rows=rows)]), "a file that does not say which version"


def test_the_terminal_shows_the_version_and_the_file_keeps_the_plain_name(tmp_path: Path) -> None:
    machine = {**MACHINE, "nvidia-resiliency-ext": "0.4.1"}
    rows = [row("form", "8 nodes", "nvrx", 1.3)]
    console = Console(width=200, file=StringIO())
    console.print(report.table_of(rows, machine))
    assert "nvrx 0.4.1" in console.file.getvalue()  # type: ignore[attr-defined]
    report.write_json(tmp_path / "run.json", machine, False, rows)
    assert [found.contender for found in runs.read(tmp_path / "run.json").rows] == ["nvrx"]


def test_the_barrier_rendezvous_stands_beside_ours() -> None:
    page = pages.page_of([RUN])
    assert "ours is about 8, 2 to 4, 2, 4 and 25 times as fast" in page
    assert "| 8 nodes have their ranks | 0.106 s | 0.019 s |" in page
    assert "| 1,024 nodes have their ranks | 2 to 2.4 s | 2.5 s |" in page
    assert "| 10,000 participants are read | 0.196 s | 0.0034 s |" in page


def test_of_several_runs_the_last_that_has_a_benchmark_counts() -> None:
    newer = replace(RUN, name="newer.json", rows=[row("form", "8 nodes", "ours", 0.777)], findings=[])
    page = pages.page_of([RUN, newer])
    assert "| 8 nodes | **ours** | 777 |" in page
    assert "1,295" not in page
    assert "## read" in page
    assert "`newer.json`" in page


def test_numbers_have_three_digits_that_count() -> None:
    told = [digits(value) for value in (0, 1, 10.0, 1295.2, 66.44, 0.04512, 0.0001, 1e6)]
    assert told == ["0", "1", "10", "1,295", "66.4", "0.0451", "0.000100", "1,000,000"]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("8 nodes", NodeCase(8, "")),
        ("1,024 nodes", NodeCase(1_024, "")),
        ("10,000 nodes, first read", NodeCase(10_000, "first read")),
        ("4096 nodes (load generator)", NodeCase(4_096, "(load generator)")),
        ("1 node", NodeCase(1, "")),
        ("encode 10,000 arrivals", None),
        ("nodes", None),
    ],
)
def test_cases_say_how_many_nodes(name: str, case: NodeCase | None) -> None:
    assert parse_case(name) == case


def test_points_measured_in_two_ways_are_not_joined() -> None:
    lines = plots.lines_of([(parse_case(found.case), found) for found in RUN.rows_of("form")])  # type: ignore[misc]
    assert [(line.label, line.points, line.late) for line in lines] == [
        ("ours", [(8, 0.0195), (1_024, 2.5)], []),
        ("ours, generated", [(4_096, 3.5)], []),
        ("c10d", [(8, 1.295)], [(1_024, 60.0)]),
    ]


# --- the command ------------------------------------------------------------------------------------


def test_the_command_writes_a_page_and_its_images(tmp_path: Path) -> None:
    source = write(tmp_path / "made-up.json")
    assert main(["report", str(source), "--out", str(tmp_path / "docs")]) == 0
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    images = re.findall(r"\]\((images/[^)]+)\)", page)
    assert len(images) == 3
    for name in images:
        assert (tmp_path / "docs" / name).read_bytes().startswith(PNG)
    assert (publish.DOCS / "benchmarks.md").read_text() == PAGE


def test_without_matplotlib_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "made-up.json")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(source), "--out", str(tmp_path / "docs")]) == 1
    assert "pip install 'ft-rendezvous[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "docs" / "benchmarks.md").exists()


def test_the_newest_whole_run_is_found_and_newer_runs_of_what_it_lacks(tmp_path: Path) -> None:
    def of(*names: str) -> list[dict[str, Any]]:
        return [row(name, "a case", "ours", 1.0).as_dict() for name in names]

    write(tmp_path / "20260101T000000Z.json", only=["ray"], rows=of("ray"), findings=[])
    write(tmp_path / "20260102T000000Z.json")
    write(tmp_path / "20260103T000000Z.json")
    write(tmp_path / "20260104T000000Z.json", is_quick=True)
    write(tmp_path / "20260105T000000Z.json", only=["codec"], rows=of("codec"), findings=[])
    write(tmp_path / "20260106T000000Z.json", only=["ray"], rows=of("ray"), findings=[])
    write(tmp_path / "20260107T000000Z.json", only=["groups"], rows=of("groups"), findings=[])
    write(tmp_path / "20260108T000000Z.json", only=["ray"], rows=of("ray"), findings=[])
    write(tmp_path / "20260109T000000Z.json", only=["ray", "codec"], rows=of("ray", "codec"), findings=[])
    newer = {**MACHINE, "commit": "2" * 40}
    write(tmp_path / "20260110T000000Z.json", only=["codec"], rows=of("codec"), findings=[], machine=newer)
    write(tmp_path / "scenarios.json")
    found = [Path(run.name).name for run in runs.find_shown(tmp_path)]
    whole, *parts = found
    assert whole == "20260103T000000Z.json"
    assert parts == ["20260107T000000Z.json", "20260108T000000Z.json", "20260110T000000Z.json"]


def test_without_a_whole_run_there_is_nothing_to_show(tmp_path: Path) -> None:
    write(tmp_path / "20260105T000000Z.json", only=["codec"])
    with pytest.raises(FileNotFoundError, match="no whole run"):
        runs.find_shown(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps({"machine": {}, "scenarios": {}}))
    with pytest.raises(ValueError, match="holds no results"):
        runs.read(path)
