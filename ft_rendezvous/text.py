"""Helpers for text: they make it safe and short enough for a log, a record or a sentence."""

import ipaddress
import re
from collections.abc import Iterable

MINUTE, HOUR, DAY = 60, 3_600, 86_400
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Characters that control a terminal. The last line of a worker's log may hold any of them."""

NAMED = 8
"""How many names a sentence lists. The others are only counted."""

MAX_TEXT_CHARS = 4096
MAX_REASON_CHARS = 200
MAX_NAME_CHARS = 200
"""Of a domain or a unit: every arrival carries the name."""


def one_line(text: str) -> str:
    """Text as a reason: one printable line of limited length that can always be encoded."""
    # Cut twice: very long text is not worth cleaning, and cleaning never makes it longer.
    encodable = text[:MAX_TEXT_CHARS].encode(errors="replace").decode()
    printable = "".join(char if char.isprintable() else " " for char in encodable)
    return " ".join(printable.split())[:MAX_REASON_CHARS]


def clean(text: str) -> str:
    """The text on one line, without characters that control a terminal."""
    return CONTROLS.sub(" ", text).strip()


def is_address(text: str) -> bool:
    """Whether the text is an IP address, and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listing(items: Iterable[object], most: int = NAMED) -> str:
    """`a, b and 4 more`."""
    names = [str(item) for item in items]
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def duration(seconds: float) -> str:
    """Seconds as text, more precise if they are few: 0.35 ms, 35 ms, 4.2 s, 3 min 05 s, 2 h 05 min, 3 d 04 h."""
    if seconds < 0.9995:
        millis = max(0.0, seconds) * 1e3
        return f"{millis:.0f} ms" if millis >= 9.5 else f"{millis:.2g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    if whole < 2 * DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    return f"{whole // DAY} d {whole % DAY // HOUR:02d} h"
