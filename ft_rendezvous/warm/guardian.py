"""A guardian: the parent of one warm worker. It forks the worker, passes signals to it, and tells the client its end.

It is a fork of the nursery that takes one connection. It is there so that no kill leaves a process behind, and so that
the end of the nursery costs no worker:

- the client is killed: the connection ends, and the guardian kills the worker and its process group;
- the guardian is killed: the kernel kills the worker (PDEATHSIG), and the client ends as if by SIGKILL;
- the nursery is killed: guardians and workers go on.

The worker waits until the client has said that it follows. Until then the client may still start cold; after that it
never does. So no two workers run in one place.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import marshal
import os
import select
import signal
import struct
import sys
from dataclasses import dataclass

from ft_rendezvous.warm import client
from ft_rendezvous.warm.becoming import (
    Libraries,
    WorkerRequest,
    become,
    find_spare_fd,
    move_fd,
    tie_to_parent,
    watch_optimizer_if_asked,
)
from ft_rendezvous.warm.client import Line, word
from ft_rendezvous.warm.rules import ForkWish, NurseryBirth, choose_path_entry, decide_serve, find_shadowing

REQUEST_TIMEOUT_S = 30.0
GROUP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Torch sends these to the worker's process group. The others go to a single process."""
SIGNALFD_INFO_BYTES = 128


class Unserved(Exception):
    """This worker starts cold, for the reason that the text gives."""


@dataclass(frozen=True, slots=True)
class Nest:
    """What a guardian takes over from the nursery."""

    birth: NurseryBirth
    libraries: Libraries
    secret: str
    """What a client must know to be served."""


def guard(line: Line, nest: Nest) -> WorkerRequest:
    """Serve one client. Returns in the worker alone, which must then run its script. The guardian ends here."""
    try:
        request = _serve(line, nest)
    except Unserved as error:
        refuse(line, str(error))
    except (OSError, ValueError) as error:
        refuse(line, f"the system refused: {error}")
    else:
        if request is not None:
            return request
    os._exit(0)


def refuse(line: Line, reason: str, *, is_said: bool = True) -> None:
    """Tell the client to start cold, and whether its user should know."""
    text = reason.encode(errors="replace")[:2000]
    with contextlib.suppress(OSError):  # It may have gone.
        line.send(word(client.REFUSE, len(text) if is_said else -len(text)) + text)


def _serve(line: Line, nest: Nest) -> WorkerRequest | None:
    """The request, in the worker. None in the guardian, when all is over."""
    # First of all: a nursery's socket ends with the nursery, whatever this client does.
    for fd in nest.libraries.own_fds:
        os.close(fd)
    os.setsid()
    nest.libraries.call_process(b"ftr-guardian")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    request, received = _receive(line, nest.secret)
    _check(request, len(received), nest.birth)
    # The worker's descriptors take their places before it has done with these.
    spare = find_spare_fd(request.fds)
    ready, say_ready, may_go, say_go = (move_fd(fd, spare) for fd in (*os.pipe(), *os.pipe()))
    guardian = os.getpid()
    pid = os.fork()
    if pid == 0:
        tie_to_parent(nest.libraries, guardian)
        for fd in (ready, say_go, line.socket.detach()):
            os.close(fd)
        if _prepare(request, received, nest, say_ready) and os.read(may_go, 1):
            os.close(may_go)
            return request
        os._exit(0)
    for fd in (say_ready, may_go, *received):
        os.close(fd)
    _guard_worker(line, pid, ready, say_go, nest.libraries)
    return None


def _receive(line: Line, secret: str) -> tuple[WorkerRequest, list[int]]:
    if not select.select([line.socket], [], [], REQUEST_TIMEOUT_S)[0]:
        raise Unserved("the nursery got no request")
    head, received = line.receive(client.HEADER_BYTES)
    words = head.split(b" ")
    size = int(words[3]) if len(words) > 4 and words[3].isdigit() else -1
    told = words[4].decode(errors="replace") if len(words) > 4 else ""
    if not 0 <= size <= client.MAX_REQUEST_BYTES or client.header(size, told) != head:
        raise Unserved("it runs another Python or another version of ft-rendezvous than the nursery")
    if not hmac.compare_digest(told.encode(), secret.encode()):
        raise Unserved("it does not know the secret of the nursery")
    body, more = line.receive(size)
    if len(body) != size:
        raise Unserved("the nursery got half a request")
    fields = marshal.loads(body)
    for name in ("arguments", "words"):
        fields[name] = [os.fsdecode(each) for each in fields[name]]
    return WorkerRequest(**fields), [*received, *more]


def _check(request: WorkerRequest, fd_count: int, birth: NurseryBirth) -> None:
    wish = ForkWish(
        executable=request.executable,
        environment=request.environment,
        affinity=tuple(request.affinity),
        process=request.process,
        fds=tuple(request.fds),
        fd_count=fd_count,
        is_leader=request.is_leader,
    )
    reason = decide_serve(wish, birth)
    if reason:
        raise Unserved(reason)


def _prepare(request: WorkerRequest, received: list[int], nest: Nest, say_ready: int) -> bool:
    """Become the worker, and tell the guardian. False if that failed, with the reason in the pipe."""
    try:
        become(request, received, nest.libraries)
        _check_script(request, nest.birth)
        watch_optimizer_if_asked()
    except Unserved as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = f"the system refused: {error}"
    else:
        reason = ""
    os.write(say_ready, reason.encode(errors="replace")[:2000] or b"\0")
    os.close(say_ready)
    return not reason


def _check_script(request: WorkerRequest, birth: NurseryBirth) -> None:
    script = request.words[0]
    if not request.is_module and not os.path.isfile(script):
        raise Unserved(f"{script} is not a file")
    if not request.is_module and not script.endswith((".py", ".pyc")) and _is_archive(script):
        raise Unserved(f"{script} is an archive")
    folder = choose_path_entry(script, os.getcwd(), request.is_module, False)
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    loaded = {name for name in birth.loaded if not _is_from(name, folder or ".")}
    packages = {
        name for name in entries if name in loaded and os.path.exists(os.path.join(folder or ".", name, "__init__.py"))
    }
    reason = find_shadowing(entries, packages, loaded)
    if reason:
        raise Unserved(reason)


def _is_from(name: str, folder: str) -> bool:
    """Whether a module was imported from this very folder. Then nothing there hides it."""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _is_archive(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


# --- while the worker lives -------------------------------------------------------------------------


def _guard_worker(line: Line, pid: int, ready: int, say_go: int, libraries: Libraries) -> None:
    pidfd = os.pidfd_open(pid)
    reason = os.read(ready, 2000)
    os.close(ready)
    if reason != b"\0":
        os.close(say_go)
        os.waitpid(pid, 0)
        raise Unserved(reason.decode(errors="replace") or "the fork of the nursery has ended")
    try:
        line.send(word(client.STARTED), [pidfd])
        letter, _, _ = line.receive_word()
    except OSError:
        letter = b""
    if letter != client.GO:
        _end_worker(pid)
        return
    with contextlib.suppress(BrokenPipeError):  # The worker was killed: its end is told below.
        os.write(say_go, b"g")
    os.close(say_go)
    try:
        _pass_signals(line, pid, pidfd, _open_signalfd(libraries))
    except OSError:  # The client is gone.
        _end_worker(pid)
        return
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        line.send(word(client.END, status))


def _pass_signals(line: Line, pid: int, pidfd: int, signal_fd: int) -> None:
    """Pass signals on in both directions until the worker has ended. Raises OSError if the client is gone."""
    poller = select.poll()
    for fd in (line.socket.fileno(), pidfd, signal_fd):
        poller.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if line.socket.fileno() in ready:
            letter, signum, _ = line.receive_word()
            if not letter:
                raise ConnectionError("the client is gone")
            # The worker may have ended. It is not reaped yet, so its number stands for no other process.
            with contextlib.suppress(ProcessLookupError):
                if signum in GROUP_SIGNALS:
                    os.killpg(pid, signum)
                else:
                    os.kill(pid, signum)
        if signal_fd in ready:
            info = os.read(signal_fd, SIGNALFD_INFO_BYTES)
            signum, _, _, sender = struct.unpack_from("=IiiI", info)
            # A worker that signals its parent means the agent. Signals of others, SLURM for example, reach all.
            if sender == pid and signum != signal.SIGCHLD:
                line.send(word(client.PARENT_SIGNAL, signum))
        if pidfd in ready:
            return


def _open_signalfd(libraries: Libraries) -> int:
    mask = (ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    libraries.libc.sigfillset(mask)
    fd: int = libraries.libc.signalfd(-1, mask, os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd


def _end_worker(pid: int) -> None:
    """As torch's SIGKILL does: the worker and what is in its process group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
