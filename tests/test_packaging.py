"""What an installation brings along, and what the project says of itself."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.doc_pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NVIDIA = (ROOT / "requirements-nvidia.txt").read_text()
UNWANTED = ("pynvml", "nvidia-resiliency-ext")
"""The first makes torch warn in every worker, the second depends on it."""


@pytest.mark.parametrize("extra", [None, *PROJECT["optional-dependencies"]])
def test_no_installation_brings_pynvml(extra: str | None) -> None:
    required = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    assert [text for text in required if text.startswith(UNWANTED)] == []


def test_nvidias_extension_is_installed_without_pynvml() -> None:
    required = re.findall(r"^([\w-]+)", NVIDIA, re.MULTILINE)
    assert "nvidia-resiliency-ext" in required
    assert "pynvml" not in required


@pytest.mark.parametrize("name", ["Repository", "Documentation", "Changelog", "Issues"])
def test_the_project_says_where_it_is(name: str) -> None:
    assert PROJECT["urls"][name].startswith("https://")


def test_types_are_part_of_the_package() -> None:
    assert (ROOT / "ft_rendezvous" / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]
