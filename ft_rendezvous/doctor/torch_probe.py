"""Imports torch and tries what this package builds on; a process of its own, for an import may crash, or take minutes.

Prints one `Torch` as JSON.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec

from ft_rendezvous.doctor.facts import Torch


def run_probe(env: Mapping[str, str], limit_s: float) -> Torch:
    """What such a process finds out, or why it did not."""
    # -P: torchrun does not look for modules in the working directory either.
    command = [sys.executable, "-P", "-m", "ft_rendezvous.doctor.torch_probe"]
    try:
        done = subprocess.run(
            command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Torch(error=f"import torch has not ended within {limit_s:g} s", is_late=True)
    except OSError as error:
        return Torch(error=f"{sys.executable} cannot be started: {error.strerror}")
    try:
        return msgspec.json.decode(done.stdout, type=Torch)
    except msgspec.MsgspecError:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        return Torch(error=f"import torch ended with code {done.returncode} and said: {said[-1][:200]}")


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
        from ft_rendezvous.agent.torch_parts import missing_parts  # noqa: PLC0415
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
