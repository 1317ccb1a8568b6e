"""Runs a command of the system with a timeout and with bounded output. Decides nothing about its result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

MAX_OUTPUT_BYTES = 4 << 20
"""Of each of the two outputs; `nvidia-smi -q` prints about 10 KB per GPU. The rest is dropped."""


class CommandError(Exception):
    """The command has no result. The message says why, without the name of the command."""


class CommandNotStarted(CommandError):
    """The program does not exist, or the system refuses to start it."""


class CommandTimeout(CommandError):
    """The command did not end in time. It was killed, with all processes of its process group."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that has ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def message(self) -> str:
        """What a command that failed says about it: its errors, else its output."""
        return _as_text(self.stderr) or _as_text(self.stdout) or "nothing"

    @property
    def last_line(self) -> str:
        """The last line of its message."""
        return self.message.splitlines()[-1]


def run_command(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command to its end. Raises CommandNotStarted or CommandTimeout.

    The outputs are files, not pipes: a process that the command leaves in the background may keep a pipe open for as
    long as it lives, and is not waited for.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise CommandNotStarted(str(error)) from error
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CommandTimeout(f"it has not ended within {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                # It was not reaped, so its process group is still its own.
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return CommandResult(exit_code, _read(out), _read(err))


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_OUTPUT_BYTES)


def _as_text(output: bytes) -> str:
    return output.decode(errors="replace").strip()
