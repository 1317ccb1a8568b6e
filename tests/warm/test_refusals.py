"""Where a fork would not be what the worker must be, the worker starts cold, and says why."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.warm import client
from tests.warm.stage import COLD_WARNING, Stage, open_stage

PR_SET_NO_NEW_PRIVS = 38
ADDR_NO_RANDOMIZE = 0x0040000
IS_FORKED = "import sys; print('ft_rendezvous.warm.becoming' in sys.modules)"


def site_packages(folder: Path) -> Path:
    """A folder of installed packages, for PYTHONPATH."""
    path = folder / "site-packages"
    path.mkdir(exist_ok=True)
    return path


def run_with_preload(tmp_path: Path, text: str, name: str = "heavy") -> tuple[str, str]:
    """What a worker prints, and its warning, where the nursery preloads a module with this text."""
    packages = site_packages(tmp_path)
    (packages / f"{name}.py").write_text(text)
    with open_stage(tmp_path, {"FT_PRELOAD": name, "PYTHONPATH": str(packages)}, modules=()) as stage:
        first, second = (stage.run(IS_FORKED) for _ in range(2))
        assert first.wait() == second.wait() == 0
        if first.error_text:
            assert second.error_text == "", "a reason is said once"
        stage.assert_nothing_left()
        return first.text.strip(), first.error_text


def test_a_module_that_is_fit(tmp_path: Path) -> None:
    assert run_with_preload(tmp_path, "import json") == ("True", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "thread"),
        ("import subprocess; subprocess.Popen(['sleep', '5'])", "processes"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import nowhere", "nowhere"),
        ("import os; os.kill(os.getpid(), 9)", "the nursery"),
        ("import types, sys; t = types.ModuleType('torch'); sys.modules['torch'] = t\n"
         "t.cuda = types.SimpleNamespace(is_initialized=lambda: True)", "CUDA"),
    ],
)  # fmt: skip
def test_a_module_that_is_not_fit(tmp_path: Path, text: str, reason: str) -> None:
    if "SIGKILL" in text or "kill" in text:
        packages = site_packages(tmp_path)
        (packages / "heavy.py").write_text(text)
        with open_stage(tmp_path, {"FT_PRELOAD": "heavy", "PYTHONPATH": str(packages)}, modules=()) as stage:
            started = stage.run(IS_FORKED)
            assert (started.wait(), started.text.strip()) == (0, "False")
            assert reason in started.error_text
        return
    forked, warning = run_with_preload(tmp_path, text)
    assert forked == "False"
    assert COLD_WARNING in warning
    assert reason in warning


def test_the_scripts_own_files_are_not_preloaded(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text("raise SystemError('it was imported')")
    with open_stage(tmp_path, {"FT_PRELOAD": "mymodel", "PYTHONPATH": str(tmp_path)}, modules=()) as stage:
        started = stage.run(IS_FORKED)
        assert started.text.strip() == "False"
        assert "mymodel, which is not an installed package" in started.error_text


def test_an_installed_module_that_imports_the_scripts_own_files(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").touch()
    packages = site_packages(tmp_path)
    (packages / "heavy.py").write_text("import mymodel")
    path = os.pathsep.join(map(str, (tmp_path, packages)))
    with open_stage(tmp_path, {"FT_PRELOAD": "heavy", "PYTHONPATH": path}, modules=()) as stage:
        started = stage.run(IS_FORKED)
        assert started.text.strip() == "False"
        assert "import mymodel" in started.error_text


def test_a_changed_installation_is_noticed(tmp_path: Path) -> None:
    packages = site_packages(tmp_path)
    (packages / "heavy").mkdir()
    (packages / "heavy" / "__init__.py").write_text("VERSION = 1")
    info = packages / "heavy-1.0.dist-info"
    info.mkdir()
    with open_stage(tmp_path, {"FT_PRELOAD": "heavy", "PYTHONPATH": str(packages)}, modules=()) as stage:
        script = "import heavy; print(heavy.VERSION)"
        assert stage.run(IS_FORKED).text.strip() == "True"
        (packages / "heavy" / "__init__.py").write_text("VERSION = 20")
        changed = stage.run(script)
        assert changed.text.strip() == "20"
        assert "heavy has changed on disk" in changed.error_text
    with open_stage(tmp_path, {"FT_PRELOAD": "heavy", "PYTHONPATH": str(packages)}, modules=()) as stage:
        assert stage.run(IS_FORKED).text.strip() == "True"
        info.rename(packages / "heavy-2.0.dist-info")
        assert "heavy has changed on disk" in stage.run(script).error_text


def _lower_priority() -> None:
    os.nice(1)


def _be_killed_first() -> None:
    Path("/proc/self/oom_score_adj").write_text("500")


def _give_up_privileges() -> None:
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _fix_addresses() -> None:
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)


def _dump_little() -> None:
    Path("/proc/self/coredump_filter").write_text("0")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"env": {"MY_FLAG": "1"}}, "MY_FLAG"),
        ({"env": {"PYTHONHASHSEED": "7"}}, "PYTHONHASHSEED"),
        ({"preexec_fn": _lower_priority}, "priority"),
        ({"preexec_fn": _be_killed_first}, "oom_score_adj"),
        ({"preexec_fn": _give_up_privileges}, "privileges"),
        ({"preexec_fn": _fix_addresses}, "personality"),
        ({"preexec_fn": _dump_little}, "coredump_filter"),
        ({"start_new_session": False}, "lead a session"),
    ],
)
def test_a_worker_that_differs_from_its_agent(light_stage: Stage, options: dict[str, Any], reason: str) -> None:
    started = light_stage.run(IS_FORKED, **options)
    assert (started.wait(), started.text.strip()) == (0, "False")
    assert reason in started.error_text


@pytest.mark.parametrize("words", [["-O", "script.py"], ["-c", "import sys; print(False)"], ["-X", "dev", "script.py"]])
def test_options_that_need_an_interpreter(light_stage: Stage, words: list[str]) -> None:
    light_stage.script(IS_FORKED)
    started = light_stage.start(*words)
    assert (started.wait(), started.text.strip()) == (0, "False")
    assert COLD_WARNING in started.error_text


def test_a_file_beside_the_script_that_hides_a_module(light_stage: Stage) -> None:
    (light_stage.folder / "uuid.py").write_text("MINE = True")
    started = light_stage.run("import uuid; print(uuid.MINE)")
    assert started.text.strip() == "True"
    assert "uuid.py" in started.error_text


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_nursery_that_hangs_is_not_waited_for_for_ever(
    light_stage: Stage, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A large request does not fit into the socket: the client waits before it has sent all."""
    light_stage.run("pass")
    nursery = light_stage.nursery.pid
    assert nursery is not None
    monkeypatch.setattr(client, "NURSERY_TIMEOUT_S", 1.0)
    request = client.make_request((True, False, ["script.py"]), [], [0, 1, 2])
    answers: list[object] = []
    os.kill(nursery, signal.SIGSTOP)
    asking = threading.Thread(
        target=lambda: answers.append(client.ask(light_stage.nursery.address, request | {"x": "x" * size}, [0, 1, 2])),
        daemon=True,
    )
    asking.start()
    asking.join(30)
    os.kill(nursery, signal.SIGCONT)
    assert answers == [("the nursery has not answered for 1 s", True)]


def test_folders_and_archives_start_cold(light_stage: Stage) -> None:
    folder = light_stage.folder / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text("print('from a folder')")
    started = light_stage.start("-u", folder)
    assert (started.wait(), started.text) == (0, "from a folder\n")
    import zipfile  # noqa: PLC0415

    with zipfile.ZipFile(light_stage.folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "print('from an archive')")
    started = light_stage.start("-u", light_stage.folder / "app.zip")
    assert (started.wait(), started.text) == (0, "from an archive\n")


def test_another_python_is_served_by_itself(light_stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "python").symlink_to(os.path.realpath(sys.executable))
    from ft_rendezvous.warm.nursery import CLIENT  # noqa: PLC0415

    started = light_stage.run(IS_FORKED, command=[str(other / "python"), "-I", "-S", str(CLIENT)])
    assert (started.wait(), started.text.strip()) == (0, "False")
    assert "the nursery runs" in started.error_text
