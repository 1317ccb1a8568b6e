"""The guard of a node: a process of its own that starts torchrun, and ends it if the actor of the node is gone.

Ray ends an actor with SIGKILL, and its workers' workers live on: torchrun's workers are leaders of their own sessions.
The guard is no child of Ray's: it left its parent and its session. It holds the actor's pidfd, so it knows of the
actor's end at once, whatever ended it. When torchrun ends, the guard kills what torchrun has left, which it finds by a
variable in their environment.

The actor starts it with the specification of the process on its standard input and two descriptors as arguments: its
own pidfd, and a socket. Messages are JSON, one per datagram: `{"signal": 15}` from the actor; `{"started": pid}`,
`{"failed": "why"}` or `{"exited": code}` from the guard.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ft_rendezvous.agent.processes import open_pidfd
from ft_rendezvous.agent.reaper_main import end_carriers

NODE_VARIABLE = "FT_RAY_NODE"
"""Marks every process of one start of one node."""
MAX_MESSAGE_BYTES = 65536
END_GRACE_S = 10.0
"""How long torchrun may take to end its workers after its actor is gone."""

_PR_SET_PDEATHSIG = 1
_SURVIVED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    actor_fd, control_fd = int(sys.argv[1]), int(sys.argv[2])
    spec = json.loads(sys.stdin.buffer.read())
    if os.fork():  # The actor's child ends. The guard is now a child of the machine's first process.
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SURVIVED_SIGNALS)
    with socket.socket(fileno=control_fd) as control:
        guard_process(spec, actor_fd, control)


def guard_process(spec: Mapping[str, Any], actor_fd: int, control: socket.socket) -> None:
    """Start the process, wait for its end or the actor's, and leave no process behind."""
    entry = f"{NODE_VARIABLE}={spec['marker']}"
    try:
        process = _start(spec)
    except OSError as error:
        # Not always the command: it may be the log, or the directory.
        _tell(control, {"failed": f"{error.filename or spec['command'][0]}: {error.strerror or error}"})
        return
    _tell(control, {"started": process.pid})
    code = _watch(process, actor_fd, control)
    # What torchrun has left is worth nothing without it.
    end_carriers(os.fsencode(entry))
    _tell(control, {"exited": code})


def _start(spec: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in spec["unset"]}
    env |= {**spec["env"], NODE_VARIABLE: spec["marker"]}
    guard_pid = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)

    def before_exec() -> None:
        # If the guard itself is killed, torchrun ends its workers and itself.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SURVIVED_SIGNALS)
        if os.getppid() != guard_pid:
            os._exit(1)

    with open(spec["log"], "ab") as log:
        return subprocess.Popen(
            spec["command"],
            env=env,
            cwd=spec["cwd"] or None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=before_exec,  # noqa: PLW1509 - The guard has no threads.
        )


def _watch(process: subprocess.Popen[bytes], actor_fd: int, control: socket.socket) -> int:
    """Wait until the process has ended, and return its exit code. End it if the actor ends first."""
    process_fd = open_pidfd(process.pid)
    poller = select.poll()
    for fd in (process_fd, actor_fd, control.fileno()):
        poller.register(fd, select.POLLIN)
    kill_at: float | None = None
    while True:
        wait_ms = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
        ready = {fd for fd, _ in poller.poll(wait_ms)}
        if process_fd in ready:
            return process.wait()
        if control.fileno() in ready and not _obey(process, control):
            poller.unregister(control.fileno())
            ready.add(actor_fd)
        if actor_fd in ready and kill_at is None:
            process.send_signal(signal.SIGTERM)
            kill_at = time.monotonic() + END_GRACE_S
            poller.unregister(actor_fd)
        if kill_at is not None and time.monotonic() >= kill_at:
            process.kill()
            return process.wait()  # A process that the kernel keeps has a guard that waits, and does nothing else.


def _obey(process: subprocess.Popen[bytes], control: socket.socket) -> bool:
    """Send the signal that the actor asks for. False if the actor has hung up."""
    try:
        data = control.recv(MAX_MESSAGE_BYTES)
    except ConnectionError:  # The actor has ended before it read what the guard told it.
        return False
    if not data:
        return False
    process.send_signal(int(json.loads(data)["signal"]))
    return True


def _tell(control: socket.socket, message: Mapping[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:  # The actor is gone.
        return


if __name__ == "__main__":
    main()
