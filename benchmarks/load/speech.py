"""Store operations in the bytes of TCPStore's wire protocol. No socket anywhere.

Tests compare what is said here with what torch's own client says, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ft_rendezvous.protocol.ops import Add, Append, CompareSet, Get, Move, MultiSet, Op, Set

T = TypeVar("T")

Reader = Callable[[bytes], Any]
"""The answer, given all that was heard since the question; None while it is not complete."""

Talk = Generator[tuple[bytes, Reader], Any, T]
"""Yields what to say and how to read the answer; receives the answer."""

_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _WAIT = (bytes([no]) for no in (0, 1, 2, 3, 4, 6))
_APPEND, _MULTI_SET, _PING = (bytes([no]) for no in (9, 11, 13))
_MAGIC = struct.pack("<I", 0x3C85F7CE)
_STOPPED_WAITING = b"\x00"
_length = struct.Struct("<Q")
_number = struct.Struct("<q")
_ONE_KEY = _length.pack(1)
NONCE_BYTES = 4


def greet(nonce: bytes) -> bytes:
    """What a client says first; the store answers with the nonce."""
    return _VALIDATE + _MAGIC + _PING + nonce


def talk(move: Move[T]) -> Talk[T]:
    """A move in bytes. Writes that the store does not acknowledge go out together with what follows them."""
    unsent, answer = b"", None
    while True:
        try:
            op = move.send(answer)
        except StopIteration as stop:
            assert not unsent, "a move ends with a question: else its end could not be seen"
            result: T = stop.value
            return result
        match op:
            case Get():
                # As torch's client does: wait for the key, then read it.
                key = _key(op.key)
                yield unsent + _WAIT + _ONE_KEY + key, read_waited
                unsent, answer = b"", (yield _GET + key, read_value)
            case Add():
                said = _ADD + _key(op.key) + _number.pack(op.amount)
                unsent, answer = b"", (yield unsent + said, read_number)
            case CompareSet():
                said = _COMPARE_SET + _key(op.key) + _data(op.expected) + _data(op.desired)
                unsent, answer = b"", (yield unsent + said, read_value)
            case _:
                unsent, answer = unsent + _write(op), None


def _write(op: Op) -> bytes:
    match op:
        case Set():
            return _SET + _key(op.key) + _data(op.value)
        case Append():
            return _APPEND + _key(op.key) + _data(op.value)
        case MultiSet():
            pairs = zip(op.keys, op.values, strict=True)
            return _MULTI_SET + _length.pack(len(op.keys)) + b"".join(_key(key) + _data(value) for key, value in pairs)
    raise NotImplementedError(f"no node that forms a world says {type(op).__name__}")


def _key(key: str) -> bytes:
    return _data(b"/" + key.encode())


def _data(data: bytes) -> bytes:
    return _length.pack(len(data)) + data


# --- what the store answers -------------------------------------------------------------------------


def read_waited(heard: bytes) -> bool | None:
    if heard and heard != _STOPPED_WAITING:
        raise ConnectionError("the store ended the wait")
    return True if heard else None


def read_number(heard: bytes) -> int | None:
    if len(heard) < _number.size:
        return None
    number: int = _number.unpack(heard)[0]
    return number


def read_value(heard: bytes) -> bytes | None:
    if len(heard) < _length.size:
        return None
    value = heard[_length.size :]
    return value if len(value) == _length.unpack_from(heard)[0] else None
