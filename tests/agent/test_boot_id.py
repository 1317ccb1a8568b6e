"""The name of a boot, as arrivals carry it."""

from __future__ import annotations

import string
from unittest.mock import patch

from ft_rendezvous.agent.processes import read_boot_id


def test_the_name_of_this_boot_is_short_and_stays() -> None:
    boot_id = read_boot_id()
    assert boot_id == read_boot_id()
    assert len(boot_id) == 8
    assert set(boot_id) <= set(string.hexdigits)


def test_a_system_without_boot_names_has_an_empty_one() -> None:
    with patch("builtins.open", side_effect=FileNotFoundError):
        assert read_boot_id() == ""
