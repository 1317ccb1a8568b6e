"""torchrun, but torch's exit barrier raises on this agent before it has reached the store.

usage: as torchrun's.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from torch.distributed import run
from torch.distributed.elastic.agent.server import api


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("ft-test raises in the exit barrier")


if __name__ == "__main__":
    api.store_util.barrier = fail
    sys.exit(run.main(sys.argv[1:]))
