"""Prints what a script can see of its process, as JSON: a cold and a warm worker must print the same."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

MARK = "report: "


def describe_stream(stream: Any) -> list[object]:
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return [
        type(stream).__name__,
        type(stream.buffer).__name__,
        stream.name,
        stream.mode,
        stream.encoding,
        stream.errors,
        stream.line_buffering,
        stream.write_through,
        stream.newlines,
        stream.fileno(),
        raw.closefd,
        raw.mode,
    ]


def describe_main() -> dict[str, str]:
    main = sys.modules["__main__"]
    names = ("__name__", "__file__", "__package__", "__spec__", "__doc__", "__cached__")
    found = {name: re.sub(" at 0x[0-9a-f]+", "", repr(getattr(main, name, "missing"))) for name in names}
    return found | {
        "loader": type(main.__loader__).__name__,
        "is this": str(main.__dict__ is globals()),
        "builtins": repr(type(main.__dict__["__builtins__"])),
        "other": repr(sorted(name for name in vars(main) if name.startswith("__"))),
    }


def describe_signals() -> dict[str, str]:
    status = Path("/proc/self/status").read_text()
    lines = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Sig")}
    handlers = {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}
    return {name: lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")} | {"handlers": repr(handlers)}


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        path = Path(f"/proc/self/fd/{name}")
        if path.is_symlink():  # The descriptor of the listing is gone.
            found[name] = str(path.readlink())
    return found


def report() -> dict[str, object]:
    umask = os.umask(0)
    os.umask(umask)
    pid = os.getpid()
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "executable": sys.executable,
        "flags": repr(sys.flags),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "path": sys.path,
        "main": describe_main(),
        "streams": [describe_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "is default": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "signals": describe_signals(),
        "leads": [os.getsid(0) == pid, os.getpgrp() == pid],
        "umask": umask,
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
        },
        "affinity": sorted(os.sched_getaffinity(0)),
        "descriptors": descriptors(),
        "command": Path("/proc/self/cmdline").read_bytes().decode().split("\0"),
        "shown environment": sorted(Path("/proc/self/environ").read_bytes().decode().split("\0")),
        "name": Path("/proc/self/comm").read_text(),
        "is forked": "ft_rendezvous.warm.becoming" in sys.modules,
    }


if __name__ == "__main__":
    print(MARK + json.dumps(report(), default=repr))
