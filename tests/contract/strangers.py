"""Programs that are not a store, each on a port of its own on loopback."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[socket.socket], None]


@contextmanager
def listener(answer: Answer | None, address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A program that answers every connection like this; None is one that never accepts."""
    server = socket.create_server((address, port))
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
                kept.append(client)
                assert answer is not None
                answer(client)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    if answer is not None:
        thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for client in kept:
            client.close()


def free_port() -> int:
    """A port on which nothing listens."""
    with listener(None) as port:
        return port


def speak_http(client: socket.socket) -> None:
    client.recv(1024)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    client.close()


def speak_ssh(client: socket.socket) -> None:
    client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    client.recv(1024)
    client.close()


def echo(client: socket.socket) -> None:
    client.sendall(client.recv(1024))
    client.close()


def answer_late(client: socket.socket) -> None:
    """A store that stood still: it answers the ping only after the client has waited long enough."""
    greeting = client.recv(10, socket.MSG_WAITALL)
    client.recv(4, socket.MSG_WAITALL)
    client.sendall(greeting[-4:])


def hang_up(client: socket.socket) -> None:
    client.recv(1024)
    client.close()


def reset(client: socket.socket) -> None:
    """What a program does that closes with most of our greeting unread."""
    client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def say_nothing(_: socket.socket) -> None:
    """Accept and be silent."""
