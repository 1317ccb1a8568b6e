"""The nursery's own process: imports what workers need, and forks a guardian for every client that asks.

The interpreter that torchrun would start for a worker runs this file by its path, with the agent's environment. It must
stay fit to be forked: one thread, no GPU context, no descriptor that matters. It ends when its agent ends.
"""

from __future__ import annotations

import sys

BARE_MODULES = frozenset(sys.modules)
"""What an interpreter imports by itself. A script's folder cannot hide these, warm or cold."""

import _socket  # noqa: E402
import atexit  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from ft_rendezvous.warm.becoming import WorkerRequest
    from ft_rendezvous.warm.client import Line

READY_NAME = b"ftr-nursery"
"""What the kernel calls a nursery that has done its imports."""
PRELOAD_VARIABLE = "FT_PRELOAD"
BLAS_VARIABLE = "OPENBLAS_NUM_THREADS"


def main(listen_fd: int, agent_fd: int, modules: list[str]) -> Callable[[], None]:
    """Serve clients until the agent ends. Returns in a worker alone: what runs its script."""
    # The folder of this file is no place for imports. The package is, until it is imported.
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from ft_rendezvous.warm import becoming, guardian, preloading, rules  # noqa: PLC0415
    from ft_rendezvous.warm.client import NURSERY_VARIABLE, describe_process, find_peer, parse_address  # noqa: PLC0415
    from ft_rendezvous.warm.client import Line as ClientLine  # noqa: PLC0415

    del sys.path[0]
    # Registered first, so it runs last at the end of a worker: libraries that count their objects find none left.
    atexit.register(gc.unfreeze)
    environment = dict(os.environb)
    _, _, secret = parse_address(os.environ[NURSERY_VARIABLE])
    os.environ[BLAS_VARIABLE] = "1"  # OpenBLAS would start threads at its import.
    preloaded = preloading.preload([*modules, *rules.parse_preload(os.environ.get(PRELOAD_VARIABLE, ""))])
    torch = sys.modules.get("torch")
    own_fds = (listen_fd, agent_fd)
    libraries = becoming.Libraries.find(own_fds, preloaded.generators)
    loaded = {name.partition(".")[0] for name in sys.modules} - BARE_MODULES
    birth = rules.NurseryBirth(
        executable=sys.executable,
        environment=environment,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        process=describe_process(),
        loaded=frozenset(loaded),
    )
    child_count = count_children()
    gc.collect()
    gc.freeze()  # A collection in a worker would write to every object, and so copy its memory.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps guardians.
    libraries.call_process(READY_NAME)
    listener = _socket.socket(fileno=listen_fd)
    poller = select.poll()
    for fd in own_fds:
        poller.register(fd, select.POLLIN)
    said: set[str] = set()
    while True:
        if agent_fd in dict(poller.poll()):
            os._exit(0)
        try:
            connection, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:  # The client is gone, or there are too many open files.
            time.sleep(0.01)
            continue
        line = ClientLine(_socket.socket(fileno=connection))
        facts = rules.NurseryFacts(
            thread_count=len(os.listdir("/proc/self/task")),
            child_count=child_count,
            open_files=list_open_files(),
            has_gpu_context=torch is not None and bool(torch.cuda.is_initialized()),
            failed_preloads=preloaded.failures,
            changed_packages=preloaded.find_changed(),
        )
        reason = rules.decide_fork(facts)
        if find_peer(line.socket)[1] != os.getuid():
            reason = "the nursery serves its own user only"
        if reason:
            guardian.refuse(line, reason, is_said=reason not in said)
            said.add(reason)
        elif _fork(line, guardian.refuse):
            listener.detach()
            request: WorkerRequest = guardian.guard(line, guardian.Nest(birth, libraries, secret))
            return lambda: becoming.run(request, libraries)
        line.socket.close()


def _fork(line: Line, refuse: Callable[[Line, str], None]) -> bool:
    """Whether this is the fork."""
    try:
        return os.fork() == 0
    except OSError as error:  # No memory, or too many processes.
        refuse(line, f"the system refused: {error}")
        return False


def count_children() -> int:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            return len(children.read().split())
    except OSError:  # A kernel without this file.
        return 0


def list_open_files() -> tuple[str, ...]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # The descriptor of the listing itself.
            continue
    return tuple(found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])()
