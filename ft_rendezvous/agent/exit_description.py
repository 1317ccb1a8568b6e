"""How a worker ended, in words: its exit code or signal, its error file, and the last line of its log.

The files may be on a file system that hangs, so they are read in a thread of their own, for a short time.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

from ft_rendezvous.host.side_call import SideCall
from ft_rendezvous.text import one_line

log = logging.getLogger("ft_rendezvous")

ERROR_FILE_TIMEOUT_S = 0.2
"""How long the report of a failure waits for the worker's own words. The other nodes wait for the report."""
LOG_TAIL_BYTES = 4096
MAX_WORDS_CHARS = 150


def describe_exit(exit_code: int, message: str) -> str:
    """How a worker ended, with the message from its error file if there is one."""
    how = _name_signal(-exit_code) if exit_code < 0 else f"exit code {exit_code}"
    return f"{how}: {message}" if message else how


def read_words(error_file: str | None, log_path: str) -> tuple[str, str]:
    """The message in the error file and the last line of the log. Both are empty if the files cannot be read soon."""
    call = SideCall(lambda: (message_in(error_file), last_line_of(log_path)), "ft-last-words")
    call.start()
    if not call.wait(ERROR_FILE_TIMEOUT_S):
        log.warning(
            "the files of a failed worker could not be read within %g s, so its report goes without them: %s",
            ERROR_FILE_TIMEOUT_S,
            ", ".join(filter(None, (error_file, log_path))),
        )
    return call.value or ("", "")


def last_line_of(log_path: str) -> str:
    """The last line that a worker wrote: the error itself, if a Python program failed."""
    try:
        with Path(log_path or os.devnull).open("rb") as log_file:
            log_file.seek(-min(LOG_TAIL_BYTES, log_file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = log_file.read(LOG_TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((one_line(line.strip())[:MAX_WORDS_CHARS] for line in reversed(lines) if line.strip()), "")


def message_in(error_file: str | None) -> str:
    """The first line of the message in an error file, which torch's `@record` writes in the worker."""
    try:
        message = json.loads(Path(error_file or os.devnull).read_bytes())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return one_line(str(text).strip().splitlines()[0])[:MAX_WORDS_CHARS]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def _name_signal(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
