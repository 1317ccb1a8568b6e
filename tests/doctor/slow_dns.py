"""A name server on 127.0.0.1 that knows no name: `slow_dns.py 0.2` says so after 0.2 s, `slow_dns.py never` not at all.

A program of its own, because it must be in the network namespace of those who ask it.
"""

from __future__ import annotations

import socket
import sys
import threading

NO_SUCH_NAME = b"\x81\x83"


def main(delay: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 53))
        print("ready", flush=True)
        while True:
            query, client = server.recvfrom(4096)
            if delay != "never":
                answer = query[:2] + NO_SUCH_NAME + query[4:6] + bytes(6) + query[12:]
                threading.Timer(float(delay), server.sendto, (answer, client)).start()


if __name__ == "__main__":
    main(sys.argv[1])
