"""Turns `--rdzv-conf` and TOML values into the fields of a frozen dataclass, and checks keys and types.

A field is a setting if its metadata names a key. This module knows no setting by name; `settings` defines them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from ft_rendezvous.errors import ConfigError


def setting(key: str, default: Any, doc: str) -> Any:
    """A field that users can set under this key."""
    return field(default=default, metadata={"key": key, "doc": doc})


def key_of(item: dataclasses.Field[Any]) -> str:
    key: str = item.metadata.get("key", item.name)
    return key


def fields_by_key(owner: type) -> dict[str, dataclasses.Field[Any]]:
    return {item.metadata["key"]: item for item in dataclasses.fields(owner) if "key" in item.metadata}


def with_config_file(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The given values, with those from the TOML file that `config` names. Given values win."""
    given = dict(conf)
    path = given.pop("config", None)
    if path is None:
        return given
    try:
        with Path(str(path)).open("rb") as file:
            from_file = tomllib.load(file)
    except (OSError, ValueError) as error:  # Not TOML, or not text at all.
        raise ConfigError(f"config={path} cannot be read: {error}") from error
    return {**from_file, **given}


def check_known(given: Mapping[str, Any], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            closest = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
            raise ConfigError(f"unknown --rdzv-conf key {key!r}; the closest known one is {closest[0]!r}")


def values_for(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values that belong to a dataclass, by field name and with the field's type."""
    by_key, types = fields_by_key(owner), get_type_hints(owner)
    return {
        by_key[key].name: _convert(key, types[by_key[key].name], value) for key, value in given.items() if key in by_key
    }


def _convert(key: str, wanted: Any, value: Any) -> Any:
    """A text from the command line, or a TOML value, in the type of the field."""
    try:
        if wanted in (float, float | None):
            number = float(value)
            if not (math.isfinite(number) and number >= 0):
                raise ValueError("it must be a number of seconds, 0 or more")
            return number
        if wanted in (int, int | None):
            return _to_count(value)
        if wanted in (bool, bool | None):
            return _to_bool(value)
        if isinstance(wanted, type) and issubclass(wanted, StrEnum):
            return _to_choice(wanted, value)
        return _to_text(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--rdzv-conf {key}={value} is malformed: {error}") from error


def _to_count(value: Any) -> int:
    text = str(value)
    if not is_digits(text):
        raise ValueError("it must be an integer, 0 or more")
    return int(text)


def is_digits(text: str) -> bool:
    """Whether the text is a plain number in ASCII digits. Superscripts and digits of other scripts are not."""
    return text.isascii() and text.isdecimal()


def _to_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "t", "yes", "y"):
        return True
    if text in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError("it must be true or false")


def _to_text(value: Any) -> str:
    if isinstance(value, bool | list | dict):
        raise ValueError("it must be text")
    return str(value)


def _to_choice(choices: type[StrEnum], value: Any) -> StrEnum:
    text = str(value).lower()
    if text not in list(choices):
        raise ValueError(f"it must be {' or '.join(choices)}")
    return choices(text)
