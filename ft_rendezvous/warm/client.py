"""`ftr-python`: looks like the Python that torchrun starts, and asks the node's nursery to fork the worker.

An isolated interpreter runs this file by its path: to import the package, or more of the standard library, would double
its time to start. It sends the nursery all that a worker inherits: arguments, environment, descriptors, limits. Then it
is the worker for torchrun: it passes signals on, and it ends as the worker ends. It becomes the ordinary interpreter,
with the same arguments, if there is no nursery, or if the nursery says why it cannot serve.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource
import select
import sys

NURSERY_VARIABLE = "FT_NURSERY"
"""The address of the node's nursery, in the environment of a worker. The same name is in `env_names`."""

FORMAT = 2
HEADER_BYTES = 80
REFUSE, STARTED, GO, SIGNAL, PARENT_SIGNAL, END = b"R", b"S", b"G", b"K", b"P", b"E"
"""The words of the conversation. Each has `WORD_BYTES`: its letter, a number, and for `REFUSE` a text follows."""
WORD_BYTES = 9
MAX_DESCRIPTORS = 200
"""The kernel passes at most 253 at once."""
MAX_REQUEST_BYTES = 1 << 28

WORKER_FD = 250
"""At this number the client holds a pidfd of its worker: so an agent that knows the client finds the worker.

It is above all numbers that a client with `MAX_DESCRIPTORS` uses, and below every limit for open files.
"""
NURSERY_TIMEOUT_S = 180.0
"""How long the nursery may still be importing. A cold worker would import for as long."""

LINUX_SIGNALS = 64
PRIVILEGES = (b"Cap", b"NoNewPrivs:", b"Seccomp")
"""How lines of /proc/self/status begin."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))


def parse_arguments(arguments: list[str]) -> tuple[bool, bool, list[str]] | str:
    """Whether `-u` and `-m` are there, and the words after them. A text says why the nursery does not serve these."""
    rest = list(arguments)
    is_unbuffered = False
    while rest and rest[0] == "-u":
        is_unbuffered = True
        del rest[0]
    is_module = bool(rest) and rest[0] == "-m"
    if is_module:
        del rest[0]
    if not rest:
        return "there is no script"
    if rest[0].startswith("-"):
        return f"the option {rest[0]} needs an interpreter of its own"
    return is_unbuffered, is_module, rest


def word(letter: bytes, number: int = 0) -> bytes:
    return letter + number.to_bytes(WORD_BYTES - 1, "little", signed=True)


def parse_address(text: str) -> tuple[str, int, str]:
    """The name of the nursery's socket, the process that opened it, and the nursery's secret. Raises ValueError.

    Every process finds the name in /proc/net/unix. Root of a container with the host's network is the host's root for
    the kernel. So the user is not enough: a client must know the secret, and the socket must be the agent's own.
    """
    name, pid, secret = text.split(":")
    return name, int(pid), secret


def header(size: int, secret: str) -> bytes:
    """Begins a request. Both ends must be the same Python: the rest is in its own format."""
    return (b"ftr-warm %d %x %d %s " % (FORMAT, sys.hexversion, size, secret.encode())).ljust(HEADER_BYTES)


class Line:
    """A connected socket that carries words, and descriptors with them. Raises OSError."""

    def __init__(self, sock: _socket.socket) -> None:
        self.socket = sock

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        """Send all of it. The descriptors go with the first byte."""
        if fds:
            numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
            sent = self.socket.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
            data = data[sent:]
        if data:
            self.socket.sendall(data)

    def receive(self, size: int) -> tuple[bytes, list[int]]:
        """So many bytes, and the descriptors that came with them. Fewer bytes if the other end is gone."""
        parts: list[bytes] = []
        fds: list[int] = []
        missing = size
        while missing:
            try:
                part, attached, _, _ = self.socket.recvmsg(
                    min(missing, 1 << 20), _socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionResetError:
                part, attached = b"", []
            for _, _, data in attached:
                fds += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) // 4 * 4, 4)]
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts), fds

    def receive_word(self) -> tuple[bytes, int, list[int]]:
        """A letter, its number and its descriptors. An empty letter if the other end is gone."""
        data, fds = self.receive(WORD_BYTES)
        if len(data) < WORD_BYTES:
            return b"", 0, fds
        return data[:1], int.from_bytes(data[1:], "little", signed=True), fds


def find_peer(sock: _socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them. A listener is who began to listen."""
    found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(found[:4], sys.byteorder), int.from_bytes(found[4:8], sys.byteorder)


# --- what a worker inherits -------------------------------------------------------------------------


def describe_process() -> dict[str, object]:
    """What this process has inherited and a fork of another process cannot take over: both must have the same."""
    namespaces = [_read_link(f"/proc/self/ns/{name}") for name in NAMESPACES]
    return {
        "user": (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), sorted(os.getgroups())),
        "cgroup": _read("/proc/self/cgroup", 4096),
        "namespaces": namespaces,
        "root": _read_link("/proc/self/root"),
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        # Of the memory policy that numactl sets, the first line tells enough.
        "memory policy": _read("/proc/self/numa_maps", 256).split(b"\n")[0].split(b" ")[1:2],
        "security label": _read("/proc/self/attr/current", 256),
        "privileges": [line for line in _read("/proc/self/status", 8192).split(b"\n") if line.startswith(PRIVILEGES)],
        **{name: _read(f"/proc/self/{name}", 256) for name in ("oom_score_adj", "personality", "coredump_filter")},
    }


def _read(path: str, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def inherited_fds() -> list[int]:
    """The descriptors that a program started in place of this one would have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # The descriptor of the listing itself.
            continue
    return sorted(found)


def _ignored_signals() -> list[int]:
    # A signal of the C library's own cannot be asked for.
    return [signum for signum in _signal.valid_signals() if _signal.getsignal(signum) == _signal.SIG_IGN]


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def make_request(parsed: tuple[bool, bool, list[str]], arguments: list[str], fds: list[int]) -> dict[str, object]:
    """All that the worker must have, in plain values."""
    is_unbuffered, is_module, words = parsed
    return {
        "executable": sys.executable,
        # As bytes: this interpreter does not read PYTHONUTF8, and may take them for other characters.
        "arguments": [os.fsencode(each) for each in arguments],
        "is_unbuffered": is_unbuffered,
        "is_module": is_module,
        "words": [os.fsencode(each) for each in words],
        "environment": dict(os.environb),
        "fds": fds,
        "umask": _umask(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "affinity": sorted(os.sched_getaffinity(0)),
        "ignored": _ignored_signals(),
        "blocked": [int(signum) for signum in _signal.pthread_sigmask(_signal.SIG_BLOCK, ())],
        "is_leader": os.getsid(0) == os.getpid(),
        "process": describe_process(),
    }


# --- the conversation -------------------------------------------------------------------------------


def ask(address: str, request: dict[str, object], fds: list[int]) -> tuple[Line, int] | tuple[str, bool]:
    """Ask the nursery for a worker: the connection to its guardian and its pidfd; or why not, and whether to say so."""
    try:
        name, agent, secret = parse_address(address)
    except ValueError:
        return f"{NURSERY_VARIABLE} is not the address of a nursery", True
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    late = f"the nursery has not answered for {NURSERY_TIMEOUT_S:.0f} s"
    try:
        _limit_sending(sock, NURSERY_TIMEOUT_S)
        sock.connect(b"\0" + name[1:].encode())
        if find_peer(sock) != (agent, os.getuid()):
            return "another process listens in place of its nursery", True
        line = Line(sock)
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            body = marshal.dumps(request)
            line.send(header(len(body), secret), [here, *fds])
            line.send(body)
        except BrokenPipeError:  # A nursery that refuses need not read all of it.
            pass
        finally:
            os.close(here)
        if not select.select([sock], [], [], NURSERY_TIMEOUT_S)[0]:
            return late, True
        letter, number, got = line.receive_word()
        if letter == STARTED and got:
            _limit_sending(sock, 0)
            return line, got[0]
        if letter == REFUSE:
            text, _ = line.receive(abs(number))
            return text.decode(errors="replace"), number > 0
    except BlockingIOError:
        return late, True
    except OSError as error:
        return f"the nursery is gone ({error.strerror})", True
    return "the nursery has ended", True


def _limit_sending(sock: _socket.socket, seconds: float) -> None:
    """Let the socket wait no longer than this when it connects or sends. Zero: without a limit."""
    size = 8 if sys.maxsize > 1 << 32 else 4
    limit = int(seconds).to_bytes(size, sys.byteorder) + bytes(size)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, limit)


def release(fds: list[int]) -> None:
    """The worker has these descriptors now. A file that it closes must not stay open here."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        if fd <= 2:
            os.dup2(null, fd, inheritable=False)
        else:
            os.close(fd)
    os.close(null)


def follow(line: Line, pidfd: int) -> int:
    """Let the worker begin, pass signals on, and return its wait status."""
    signals, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(wake)
    for signum in _signal.valid_signals():
        # An ignored signal stays ignored, here and in the worker.
        is_catchable = signum not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD)
        if is_catchable and _signal.getsignal(signum) != _signal.SIG_IGN:
            try:
                _signal.signal(signum, _note)
            except OSError:  # A signal of the C library.
                continue
    poller = select.poll()
    poller.register(signals, select.POLLIN)
    poller.register(line.socket.fileno(), select.POLLIN)
    try:
        line.send(word(GO))
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if signals in ready:
                _pass_on(line, os.read(signals, 4096))
            if line.socket.fileno() in ready:
                letter, number, _ = line.receive_word()
                if letter == END:
                    return number
                if letter == PARENT_SIGNAL:
                    os.kill(os.getppid(), number)
                if not letter:
                    break
    except OSError:
        pass
    # The guardian was killed. The kernel kills its worker, and the worker's end must come before this one.
    select.select([pidfd], [], [])
    return int(_signal.SIGKILL)


def _pass_on(line: Line, signums: bytes) -> None:
    try:
        for signum in signums:
            line.send(word(SIGNAL, signum))
    except OSError:  # The guardian is gone. It may have told the end of the worker before.
        return


def _note(_signum: int, _frame: object) -> None:
    """The number of the signal is in the pipe."""


def end_like(status: int) -> None:
    """End this process as a process with this wait status has ended."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        # The worker has left its core file, if it should. This process has nothing to show. A limit of 1 also keeps the
        # kernel from starting the program that takes core files, such as systemd-coredump; a limit of 0 does not.
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))
        if signum not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(signum, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {signum})
        os.kill(os.getpid(), signum)
        os._exit(128 + signum)
    os._exit(os.WEXITSTATUS(status))


def become_python(arguments: list[str]) -> None:
    """Become the ordinary interpreter. The signals that Python ignores are as they were."""
    for signum in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(signum, _signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *arguments])


def undo_coercion() -> None:
    """Python sets LC_CTYPE in a C locale, also in this interpreter, which does not read PYTHONCOERCECLOCALE."""
    if os.environ.get("PYTHONCOERCECLOCALE") == "0" and "LC_CTYPE" in os.environ:
        given = _read("/proc/self/environ", 1 << 24)
        if not any(each.startswith(b"LC_CTYPE=") for each in given.split(b"\0")):
            del os.environ["LC_CTYPE"]


def warn(reason: str) -> None:
    text = f"ftr-python: this worker starts cold: {reason}\n"
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:  # Standard error is closed, or a full disk.
        return


def main() -> None:
    """The console script."""
    arguments = sys.argv[1:]
    undo_coercion()
    address = os.environ.get(NURSERY_VARIABLE, "")
    if address.startswith("@"):
        parsed = parse_arguments(arguments)
        if isinstance(parsed, str):
            warn(parsed)
        else:
            fds = inherited_fds()
            answer = ask(address, make_request(parsed, arguments, fds), fds)
            if isinstance(answer[0], str):
                if answer[1]:
                    warn(answer[0])
            else:
                line, pidfd = answer[0], answer[1]
                release(fds)
                if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > WORKER_FD:
                    os.dup2(pidfd, WORKER_FD, inheritable=False)
                end_like(follow(line, pidfd))
    become_python(arguments)


if __name__ == "__main__":
    main()
