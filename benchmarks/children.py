"""Child processes that live as long as a sample or a case, and never longer.

They are forked from a server process that has imported torch once, so that starting one takes milliseconds
and inherits no connection. The end of a child closes all that it had open, in any state of its threads.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from benchmarks.measure import DidNotFinish

T = TypeVar("T")
START_LIMIT_S = 60.0
END_LIMIT_S = 5.0

RESOLVER_OPTIONS = "timeout:1 attempts:1"
"""TCPStore looks up the name of every client. Where no server answers, we must not measure that."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["benchmarks.form", "benchmarks.read"])


class ChildFailed(Exception):
    """A child raised, or ended without an answer."""


def prepare_environment() -> None:
    """Set what this process and its children need in their environment. Call before any name is resolved."""
    os.environ.setdefault("RES_OPTIONS", RESOLVER_OPTIONS)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def call(limit_s: float, function: Callable[..., T], *args: Any) -> T:
    """The function's result, computed in a child. Raises DidNotFinish after `limit_s`, or when the function does."""
    with _child(_answer, function, args) as connection:
        if not connection.poll(limit_s):
            raise DidNotFinish(limit_s)
        result: T | DidNotFinish = _receive(connection)
    if isinstance(result, DidNotFinish):
        raise result
    return result


@contextmanager
def serving(server: Callable[..., AbstractContextManager[T]], *args: Any) -> Iterator[T]:
    """What the server yields in a child (a port, say). The server is left, and the child ends, with the block."""
    with _child(_serve, server, args) as connection:
        if not connection.poll(START_LIMIT_S):
            raise ChildFailed(f"{server.__name__} did not start in {START_LIMIT_S:g} s")
        value: T = _receive(connection)
        yield value


def end_server() -> None:
    """Wait until the fork server is gone; by itself it ends seconds after us. A later child starts a new one."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@contextmanager
def _child(
    body: Callable[[Connection, Callable[..., Any], Any], None], function: Callable[..., Any], args: Any
) -> Iterator[Connection]:
    ours, theirs = _context.Pipe()
    process = _context.Process(target=body, args=(theirs, function, args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    except DidNotFinish:
        process.kill()
        raise
    finally:
        ours.close()
        _end(process)


def _end(process: BaseProcess) -> None:
    """A child ends by itself when its connection closes; one that hangs in a store call does not."""
    process.join(END_LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _receive(connection: Connection) -> Any:
    try:
        value, failure = connection.recv()
    except EOFError:
        raise ChildFailed("the child ended without an answer") from None
    if failure is not None:
        raise ChildFailed(failure)
    return value


# --- in the child -----------------------------------------------------------------------------------


def _answer(connection: Connection, function: Callable[..., Any], args: Any) -> None:
    try:
        connection.send((function(*args), None))
    except DidNotFinish as late:
        connection.send((late, None))
    except BaseException:
        connection.send((None, traceback.format_exc()))


def _serve(connection: Connection, server: Callable[..., AbstractContextManager[Any]], args: Any) -> None:
    try:
        with server(*args) as value:
            connection.send((value, None))
            connection.poll(None)  # The parent never writes: this is the end of its block, or of itself.
    except BaseException:
        connection.send((None, traceback.format_exc()))
