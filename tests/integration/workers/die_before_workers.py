"""torchrun, but this agent is SIGKILLed between the seal and the start of its workers.

usage: as torchrun's. The agent has its rank when it dies; nobody has been told anything.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from torch.distributed import run
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent


def die(agent: LocalElasticAgent, worker_group: Any) -> NoReturn:
    print(f"ft-test dies group_rank={worker_group.group_rank} spec={type(agent).__name__}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has no survivors")


if __name__ == "__main__":
    LocalElasticAgent._start_workers = die  # type: ignore[method-assign]
    sys.exit(run.main(sys.argv[1:]))
