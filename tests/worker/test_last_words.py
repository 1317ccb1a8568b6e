"""The last line that a failed worker wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ft_rendezvous.agent.worker_group import TAIL_BYTES, last_words_in


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"Traceback (most recent call last):\n  File ...\nRuntimeError: boom\n", "RuntimeError: boom"),
        (b"no newline at the end", "no newline at the end"),
        (b"x" * 3 * TAIL_BYTES + b"\nValueError: late\n\n", "ValueError: late"),
        (b"caf\xe9 \x1b[31mred\x1b[0m\n", "caf� [31mred [0m"),
        (b"y" * 3 * TAIL_BYTES, "y" * 150),
    ],
)
def test_the_last_line_is_told_cut_and_printable(tmp_path: Path, content: bytes, words: str) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(content)
    assert last_words_in(str(log)) == words


@pytest.mark.parametrize("path", ["", "/nonexistent/stderr.log", "/"])
def test_where_there_is_no_log_there_are_no_words(path: str) -> None:
    assert last_words_in(path) == ""
