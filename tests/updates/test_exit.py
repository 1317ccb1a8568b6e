"""What is given up does not hold up the end of the process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, threading
from ft_rendezvous.updates import Fleet, Party, UpdateError

class Stuck:
    def load(self):
        threading.Event().wait()

    def unload(self):
        threading.Event().wait()

async def flow(update):
    await update.step("load", lambda p: p.load(), undo=lambda p: p.unload())

async def main():
    fleet = Fleet([Party("a", Stuck())], step_timeout_s=0.2, abort_timeout_s=0.2, on_unrecoverable="raise")
    try:
        await fleet.update(flow, version=1)
    except UpdateError as error:
        print(error.step, error.party, type(error.__cause__).__name__, [each.what for each in error.cleanup_errors])
    print(len(asyncio.all_tasks()), sum(thread.name.startswith("ft-party") for thread in threading.enumerate()))

asyncio.run(main())
"""


def test_calls_that_never_return_do_not_block_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["load a TimeoutError ['undo']", "1 2"], done.stderr
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_the_package_needs_only_the_standard_library() -> None:
    code = "import sys, ft_rendezvous.updates; assert not {'torch', 'ray', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
