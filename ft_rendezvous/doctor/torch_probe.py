"""Imports torch and tries the parts that this package needs, in a separate process: the import may crash or hang.

Prints one `Torch` as JSON.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping

import msgspec

from ft_rendezvous.config.commands import CommandNotStarted, CommandTimeout, run_command
from ft_rendezvous.doctor.facts import Torch


def run_probe(env: Mapping[str, str], timeout_s: float) -> Torch:
    """What the process finds out, or why it has no result."""
    # -P: like torchrun, do not look for modules in the working directory.
    command = [sys.executable, "-P", "-m", "ft_rendezvous.doctor.torch_probe"]
    try:
        done = run_command(command, timeout_s=timeout_s, env=env)
    except CommandTimeout:
        return Torch(error=f"import torch has not ended within {timeout_s:g} s", is_late=True)
    except CommandNotStarted as error:
        return Torch(error=f"{sys.executable} cannot be started: {error}")
    try:
        return msgspec.json.decode(done.stdout, type=Torch)
    except msgspec.MsgspecError:
        return Torch(error=f"import torch ended with code {done.exit_code} and said: {done.last_line[:200]}")


def probe_torch() -> Torch:
    """Import torch here, and try it."""
    has_numpy = importlib.util.find_spec("numpy") is not None
    began = time.perf_counter()
    try:
        import torch  # noqa: PLC0415
        import torch.distributed  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return Torch(error=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}", has_numpy=has_numpy)
    import_s = time.perf_counter() - began
    version = str(torch.__version__)
    try:
        from ft_rendezvous.agent.torch_patches import missing_parts  # noqa: PLC0415
        from ft_rendezvous.protocol.ops import Get, Set  # noqa: PLC0415
        from ft_rendezvous.store import net  # noqa: PLC0415
        from ft_rendezvous.store.client import ServedStore  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        return Torch(version=version, import_s=import_s, missing=(str(error),), has_numpy=has_numpy)
    missing = missing_parts()
    store_s: float | None = None
    began = time.perf_counter()
    try:
        served = ServedStore(net.listen())
        served.perform(Set("doctor", b"here"))
        served.perform(Get("doctor"))
        store_s = time.perf_counter() - began
        served.stop()
    except (TypeError, RuntimeError) as error:  # Another signature, or torch's own errors.
        missing.append(f"a TCPStore on a held socket ({str(error).splitlines()[0][:120]})")
    return Torch(version=version, import_s=import_s, missing=tuple(missing), store_s=store_s, has_numpy=has_numpy)


if __name__ == "__main__":
    found = probe_torch()
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
