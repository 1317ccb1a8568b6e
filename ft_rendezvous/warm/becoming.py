"""Makes a fork of the nursery into the worker that a client asked for, and runs its script.

After `become` the process has what the ordinary interpreter would have had at the first line of the script. What must
be looked up before the fork is in `Libraries`. `run` never returns to code of this package in a way that a script could
notice: errors, exit codes and the end of the interpreter are Python's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib
import io
import mmap
import multiprocessing.process
import os
import random
import resource
import runpy
import signal
import struct
import sys
import types
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ft_rendezvous.env_names import PROGRESS_FROM_VARIABLE
from ft_rendezvous.warm.rules import choose_path_entry, count_blas_threads

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 1, 15, 35, 14
FIRST_SPARE_FD = 700
"""Descriptors wait here for their own number."""
BLAS_FUNCTIONS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a client asks for. The names are those of `client.make_request`."""

    executable: str
    arguments: list[str]
    is_unbuffered: bool
    is_module: bool
    words: list[str]
    environment: dict[bytes, bytes]
    fds: list[int]
    umask: int
    limits: dict[str, tuple[int, int]]
    affinity: list[int]
    ignored: list[int]
    blocked: list[int]
    is_leader: bool
    process: dict[str, object]


@dataclass(frozen=True, slots=True)
class Libraries:
    """Found in the nursery, so that no worker needs the time."""

    libc: Any
    set_blas_threads: tuple[tuple[Callable[[int], Any], int], ...] = ()
    """The function that sets the number of threads of each OpenBLAS, and how many processors that one counts."""
    name: bytes = b"python"
    """What the kernel calls an interpreter that was started in the ordinary way."""
    own_fds: tuple[int, ...] = field(default=())
    """Descriptors of the nursery that no worker may keep."""
    generators: tuple[random.Random, ...] = ()
    """Those of preloaded modules that need a new seed in each worker."""

    @classmethod
    def find(cls, own_fds: tuple[int, ...], generators: tuple[random.Random, ...]) -> Libraries:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
        libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_char_p)
        with open("/proc/self/comm", "rb") as name:
            return cls(libc, _find_blas(), name.read().rstrip(b"\n"), own_fds, generators)

    def call_process(self, name: bytes) -> None:
        """Let `ps` and `top` show this name."""
        self.libc.prctl(PR_SET_NAME, name, 0, 0, 0)


def _find_blas() -> tuple[tuple[Callable[[int], Any], int], ...]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    found: list[tuple[Callable[[int], Any], int]] = []
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for form in BLAS_FUNCTIONS:
            setter, getter = form.format("set_num_threads"), form.format("get_num_procs")
            if hasattr(library, setter) and hasattr(library, getter):
                found.append((getattr(library, setter), int(getattr(library, getter)())))
                break
    return tuple(found)


# --- before the first line of the script ------------------------------------------------------------


def tie_to_parent(libraries: Libraries, parent: int) -> None:
    """Let the kernel kill this process when its guardian ends, even by SIGKILL. Raises OSError if it has ended."""
    if libraries.libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0 or os.getppid() != parent:
        raise ProcessLookupError("the guardian has ended")


def become(request: WorkerRequest, received: list[int], libraries: Libraries) -> None:
    """Take over all that the client has. Raises OSError or ValueError if the system refuses a part of it."""
    os.setsid()
    libraries.call_process(libraries.name)
    os.fchdir(received[0])
    _place_descriptors(request.fds, received)
    os.umask(request.umask)
    for name, limits in request.limits.items():
        if resource.getrlimit(getattr(resource, name)) != limits:
            resource.setrlimit(getattr(resource, name), limits)
    os.sched_setaffinity(0, request.affinity)
    os.environ.clear()
    os.environb.update(request.environment)
    _renew_chance(libraries.generators)
    for set_threads, processors in libraries.set_blas_threads:
        set_threads(count_blas_threads(os.environ, min(processors, len(request.affinity))))
    _open_streams(request.is_unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")))
    sys.orig_argv[:] = [request.executable, *request.arguments]
    sys.argv[:] = ["-m", *request.words[1:]] if request.is_module else request.words
    entry = choose_path_entry(request.words[0], os.getcwd(), request.is_module, bool(sys.flags.safe_path))
    if entry is not None:
        sys.path.insert(0, entry)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = _new_main()
    with contextlib.suppress(OSError):  # Only tools that look at /proc would notice.
        _show(libraries, [request.executable, *request.arguments], request.environment)
    _set_signals(request)


def find_spare_fd(numbers: list[int]) -> int:
    """From here on, no descriptor has a number that the worker wants."""
    return max(FIRST_SPARE_FD, *numbers) + 1


def move_fd(fd: int, lowest: int) -> int:
    """Give a descriptor another number, from `lowest` on. Raises OSError if there is none."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return moved


def _place_descriptors(numbers: list[int], received: list[int]) -> None:
    """Give each descriptor the number that it had in the client."""
    spare = [move_fd(fd, find_spare_fd(numbers)) for fd in received[1:]]
    os.close(received[0])
    for number in numbers:
        if number > 2 and os.path.exists(f"/proc/self/fd/{number}"):
            raise OSError(errno.EBUSY, f"a preloaded module uses descriptor {number}")
    for fd, number in zip(spare, numbers, strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


def _renew_chance(generators: tuple[random.Random, ...]) -> None:
    """No two workers may share what is random, and no worker may notice what the nursery has drawn."""
    # Python seeds the functions of `random` anew in every fork by itself.
    for each in generators:
        random.Random.seed(each)
    multiprocessing.process.current_process().authkey = os.urandom(32)
    for name in ("_node", "_last_timestamp"):
        setattr(uuid, name, None)
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    generator = getattr(torch, "default_generator", None)
    if generator is not None:
        generator.seed()  # Torch takes a seed from the system when it is imported.


def _open_streams(is_unbuffered: bool) -> None:
    """New standard streams on descriptors 0, 1 and 2, as Python makes them."""
    former = (sys.stdin, sys.stdout, sys.stderr)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        encoding, errors = former[fd].encoding, former[fd].errors
        is_raw = is_unbuffered and fd > 0
        buffer = open(fd, "wb" if fd else "rb", buffering=0 if is_raw else -1, closefd=False)  # noqa: SIM115
        raw = buffer if is_raw else buffer.raw  # type: ignore[attr-defined]
        raw.name = f"<{name}>"  # type: ignore[misc]
        is_by_line = not is_unbuffered and (fd == 2 or buffer.isatty())
        stream = io.TextIOWrapper(
            buffer,
            encoding=encoding,
            errors=errors,
            newline="\n",
            line_buffering=is_by_line,
            write_through=is_unbuffered,
        )
        stream.mode = "r" if fd == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={})
    return main


def _set_signals(request: WorkerRequest) -> None:
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        if signum in request.ignored:
            wanted: Any = signal.SIG_IGN
        elif signum == signal.SIGINT:
            wanted = signal.default_int_handler
        elif handler is None or callable(handler):
            continue  # A preloaded module has set it, as it would in a cold worker.
        else:
            wanted = signal.SIG_DFL
        if handler != wanted:
            with contextlib.suppress(OSError, ValueError):  # SIGKILL, and signals of the C library.
                signal.signal(signum, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)


_shown: list[mmap.mmap] = []
"""Memory that the kernel reads for /proc: it must stay."""


def _show(libraries: Libraries, command: list[str], environment: Mapping[bytes, bytes]) -> None:
    """Let /proc show the worker's own command and environment. Raises OSError if the kernel does not let us."""
    words = b"".join(os.fsencode(each) + b"\0" for each in command)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        stat = [0, 0, 0, 0, *map(int, file.read().rpartition(")")[2].split()[1:])]
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(words) + len(variables)] = words + variables
    _shown.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle, end = start + len(words), start + len(words) + len(variables)
    # Fields of /proc/self/stat, numbered as in proc(5).
    code, data, heap, stack = stat[26:28], stat[45:47], stat[47], stat[28]
    bounds = (*code, *data, heap, libraries.libc.sbrk(0), stack, start, middle, middle, end)
    layout = struct.pack("=12QII", *bounds, 0, 0, 0xFFFFFFFF)
    if libraries.libc.prctl(PR_SET_MM, PR_SET_MM_MAP, layout, len(layout), 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")


def watch_optimizer_if_asked() -> None:
    """A run with `progress_from=optimizer` takes every step of an optimizer for progress."""
    if os.environ.get(PROGRESS_FROM_VARIABLE) == "optimizer":
        # By its name: this package is below what scripts call, and only a worker that is watched needs it.
        importlib.import_module("ft_rendezvous.worker").watch_optimizer()


# --- the script -------------------------------------------------------------------------------------


def run(request: WorkerRequest, libraries: Libraries) -> None:
    """Run the script or module as Python does, and end. Raises what ends the interpreter with the right exit code."""
    if request.is_module:
        _run_module(request.words[0])
        return
    path = os.path.join(os.getcwd(), request.words[0])
    file = libraries.libc.fopen(os.fsencode(path), b"rb")
    if not file:
        raise FileNotFoundError(path)
    # Python's own function for this: tracebacks show nothing of this package, and SystemExit ends the interpreter.
    run_file = ctypes.pythonapi.PyRun_SimpleFileExFlags
    run_file.argtypes, run_file.restype = (
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p),
        ctypes.c_int,
    )
    if run_file(file, os.fsencode(path), 1, None) == 0:
        return
    _end_after_error(getattr(sys, "last_type", None))


def _run_module(name: str) -> None:
    try:
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    except SystemExit:
        raise
    except BaseException as error:  # As the interpreter does: it is printed, and decides the exit code.
        traceback = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        _end_after_error(type(error))


def _end_after_error(kind: type[BaseException] | None) -> None:
    """The error is printed. A KeyboardInterrupt ends the process by SIGINT, which only Python itself can do."""
    if kind is not None and issubclass(kind, KeyboardInterrupt):
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    sys.exit(1)
