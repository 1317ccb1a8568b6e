"""The network between one node and the store, in the test's hands: it can be cut, or fall silent.

Only the node's own connections to the store pass here; its workers reach the other workers directly. So a node can lose
the store while its workers go on, which is what a lease is for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class Proxy:
    """Forwards connections to a port of this machine, until told otherwise."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def cut(self) -> None:
        """Reset every connection; new ones are served."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                # Lingering for no time makes the close a reset, which also reaches a thread blocked in recv.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RD)
            sock.close()

    def fall_silent(self) -> None:
        """Keep every connection open and forward nothing, as a partition does."""
        self._flows.clear()

    def close(self) -> None:
        self._listener.close()
        self._flows.set()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- threads ------------------------------------------------------------------------------------

    def _spawn(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._flows.wait()
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets += [client, server]
            self._spawn(self._pump, client, server)
            self._spawn(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
