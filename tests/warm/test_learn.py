"""`ftr warm learn`: which installed packages a script imports, what they cost, and whether they are fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ft_rendezvous.cli.main import app
from ft_rendezvous.warm.learn import choose_modules, learn


def test_only_what_costs_time_is_named_and_torch_is_not() -> None:
    found = [("torch", 5.0), ("torch.nn", 1.0), ("pandas", 0.5), ("six", 0.001), ("scipy", 0.9), ("pandas", 0.1)]
    lines = [json.dumps({"name": name, "seconds": seconds, "path": "/p"}) for name, seconds in found]
    assert choose_modules([*lines, '{"name": "hal']) == {"scipy": 0.9, "pandas": 0.6}


def test_a_script_is_run_and_its_packages_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "inner.py").write_text("import time; time.sleep(0.05)")
    (packages / "fit.py").write_text("import inner, time; time.sleep(0.05)")
    (packages / "unfit.py").write_text(
        "import threading, time; time.sleep(0.03)\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    (tmp_path / "mine.py").write_text("import fit, time; time.sleep(0.2)")
    (tmp_path / "train.py").write_text("import mine, unfit, sys; assert sys.argv[1:] == ['--lr', '1']; sys.exit(0)")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.chdir(tmp_path)
    learned = learn(["train.py", "--lr", "1"], 60, 29400)
    assert learned.exit_code == 0
    assert [(module.name, bool(module.unfit)) for module in learned.modules] == [("fit", False), ("unfit", True)]
    assert learned.modules[0].seconds >= 0.1
    assert learned.preload == "fit"


def test_a_script_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    assert learn(["train.py"], 2, 29400).exit_code is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_command_needs_a_script() -> None:
    assert CliRunner().invoke(app, ["warm", "learn"]).exit_code == 2
