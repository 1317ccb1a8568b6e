"""The process of `ftr warm learn` that tries one module as a nursery would: prints why it is not fit, or nothing."""

from __future__ import annotations

import os
import sys


def main(name: str) -> str:
    """Why a nursery that preloads this module would not fork. Empty if it would."""
    from ft_rendezvous.warm.nursery_main import count_children, list_open_files  # noqa: PLC0415
    from ft_rendezvous.warm.preloading import preload  # noqa: PLC0415
    from ft_rendezvous.warm.rules import NurseryFacts, decide_fork  # noqa: PLC0415

    preloaded = preload([name])
    torch = sys.modules.get("torch")
    facts = NurseryFacts(
        thread_count=len(os.listdir("/proc/self/task")),
        child_count=count_children(),
        open_files=list_open_files(),
        has_gpu_context=torch is not None and bool(torch.cuda.is_initialized()),
        failed_preloads=preloaded.failures,
    )
    return decide_fork(facts)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.stdout.write(main(sys.argv[1]))
