"""The decisions about warm workers: when a nursery may fork, and which worker it can serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ft_rendezvous.warm.client import HEADER_BYTES, header, parse_arguments
from ft_rendezvous.warm.rules import (
    ForkWish,
    NurseryBirth,
    NurseryFacts,
    choose_path_entry,
    count_blas_threads,
    decide_fork,
    decide_serve,
    find_shadowing,
    find_varied,
    is_installed,
    parse_preload,
)

BIRTH = NurseryBirth("/v/bin/python", {b"PATH": b"/bin", b"HF_HOME": b"/h"}, (0, 1), {"cgroup": b"0::/", "user": 1})
WISH = ForkWish(
    executable="/v/bin/python",
    environment={b"PATH": b"/bin", b"HF_HOME": b"/h", b"RANK": b"3"},
    affinity=(0, 1),
    process={"cgroup": b"0::/", "user": 1},
    fds=(0, 1, 2),
    fd_count=4,
    is_leader=True,
)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (NurseryFacts(), ""),
        (NurseryFacts(open_files=("/dev/null", "socket:[1]")), ""),
        (NurseryFacts(thread_count=2), "thread"),
        (NurseryFacts(child_count=1), "processes"),
        (NurseryFacts(open_files=("/dev/null", "/dev/nvidiactl")), "/dev/nvidiactl"),
        (NurseryFacts(has_gpu_context=True), "CUDA"),
        (NurseryFacts(failed_preloads=("the import of a failed",)), "the import of a failed"),
        (NurseryFacts(changed_packages=("torch",)), "torch has changed"),
    ],
)
def test_a_nursery_forks_only_where_it_is_safe(facts: NurseryFacts, reason: str) -> None:
    said = decide_fork(facts)
    assert bool(said) == bool(reason)
    assert reason in said


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (WISH, ""),
        (replace(WISH, executable="/other/bin/python"), "/other/bin/python"),
        (replace(WISH, fds=(0, 1)), "standard stream"),
        (replace(WISH, fd_count=3), "standard stream"),
        (replace(WISH, is_leader=False), "exec"),
        (replace(WISH, process={"cgroup": b"0::/job", "user": 1}), "cgroup"),
        (replace(WISH, environment={**WISH.environment, b"HF_HOME": b"/other"}), "HF_HOME"),
        (replace(WISH, affinity=(1,)), "OMP_NUM_THREADS"),
        (replace(WISH, affinity=(1,), environment={**WISH.environment, b"OMP_NUM_THREADS": b"2"}), "OMP_NUM_THREADS"),
    ],
)
def test_a_worker_that_a_fork_cannot_be_starts_cold(wish: ForkWish, reason: str) -> None:
    said = decide_serve(wish, BIRTH)
    assert bool(said) == bool(reason)
    assert reason in said


def test_own_cpus_are_served_if_the_number_of_threads_is_given() -> None:
    given = {b"OMP_NUM_THREADS": b"2"}
    birth = replace(BIRTH, environment={**BIRTH.environment, **given})
    wish = replace(WISH, affinity=(1,), environment={**WISH.environment, **given})
    assert decide_serve(wish, birth) == ""


def test_the_variables_of_the_agent_may_differ_and_no_others() -> None:
    had = {b"A": b"1", b"B": b"1", b"GONE": b"1"}
    wanted = {b"A": b"1", b"B": b"2", b"RANK": b"0", b"FT_CYCLE_ID": b"4", b"TORCHELASTIC_RUN_ID": b"r", b"NEW": b"1"}
    assert find_varied(wanted, had) == ["B", "GONE", "NEW"]


@pytest.mark.parametrize(
    ("entries", "hides"),
    [
        (["train.py", "data"], False),
        (["torch.py"], True),
        (["torch"], True),
        (["numpy"], False),  # A folder without __init__.py is found last.
        (["numpy.cpython-311-x86_64-linux-gnu.so"], True),
        (["torch.txt"], False),
    ],
)
def test_a_file_that_hides_an_imported_module_is_found(entries: list[str], hides: bool) -> None:
    assert bool(find_shadowing(entries, {"torch"}, {"torch", "numpy"})) is hides


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        (["-u", "train.py", "-m", "x"], (True, False, ["train.py", "-m", "x"])),
        (["train.py"], (False, False, ["train.py"])),
        (["-u", "-m", "pkg.train", "--lr", "1"], (True, True, ["pkg.train", "--lr", "1"])),
    ],
)
def test_scripts_and_modules_are_served(arguments: list[str], parsed: tuple[bool, bool, list[str]]) -> None:
    assert parse_arguments(arguments) == parsed


@pytest.mark.parametrize("arguments", [[], ["-u"], ["-c", "pass"], ["-O", "t.py"], ["-u", "-X", "dev", "t.py"], ["-"]])
def test_other_arguments_are_for_the_ordinary_interpreter(arguments: list[str]) -> None:
    assert isinstance(parse_arguments(arguments), str)


def test_modules_to_preload_are_named_once_each() -> None:
    assert parse_preload(" pandas, transformers pandas,,") == ["pandas", "transformers"]


def test_installed_is_what_does_not_change() -> None:
    installations, standard = ["/v/lib/python3.11/site-packages/"], ["/usr/lib/python3.11/"]
    assert is_installed("/v/lib/python3.11/site-packages/torch/__init__.py", installations, standard)
    assert is_installed("/usr/lib/python3.11/os.py", installations, standard)
    assert is_installed("/sw/torch/lib/python3.11/site-packages/torch/__init__.py", (), ())
    assert not is_installed("/home/me/project/model.py", installations, standard)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "64"}, 8),
        ({"OMP_NUM_THREADS": "x"}, 8),
        ({"OMP_NUM_THREADS": "0"}, 8),
    ],
)
def test_threads_of_openblas_are_those_of_a_cold_worker(environment: dict[str, str], count: int) -> None:
    assert count_blas_threads(environment, 8) == count


def test_the_first_place_of_the_path_is_pythons(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").touch()
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "train.py")
    assert choose_path_entry("link.py", str(tmp_path), False, False) == str(tmp_path / "real")
    assert choose_path_entry("pkg.train", str(tmp_path), True, False) == str(tmp_path)
    assert choose_path_entry("link.py", str(tmp_path), False, True) is None


def test_the_header_has_one_length() -> None:
    assert {len(header(size, "f" * 32)) for size in (0, 1 << 20, 1 << 28)} == {HEADER_BYTES}
