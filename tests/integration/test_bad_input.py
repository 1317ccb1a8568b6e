"""What a user gets wrong: a non-zero exit, and a line that says what to change."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.torchrun_cluster import Cluster


def test_an_unknown_setting(cluster: Cluster) -> None:
    node = cluster.job("1:1", conf={"lease_timout": 7}).start("typo")
    node.assert_fails()
    assert node.lines("unknown --rdzv-conf key 'lease_timout'; the closest known one is 'lease_timeout'"), node.tail()


def test_more_nodes_wanted_than_allowed(cluster: Cluster) -> None:
    """Torch says so itself, before it asks any backend: 2.8 with a bare assertion, later versions in words."""
    node = cluster.job("3:2").start("backwards")
    node.assert_fails()
    assert node.lines("min_nodes=3, max_nodes=2|assert 0 < min_nodes <= max_nodes"), node.tail()


def test_settings_that_contradict_each_other(cluster: Cluster) -> None:
    node = cluster.job("1:1", conf={"lease_timeout": 2, "beat_interval": 1}).start("hasty")
    node.assert_fails()
    assert node.lines(r"lease_timeout=2 must be more than 3 x beat_interval=1"), node.tail()


class HttpLike(socketserver.BaseRequestHandler):
    """Answers as HTTP servers do: not before the blank line that ends a request's header."""

    def handle(self) -> None:
        received = b""
        while not re.search(rb"\n\r?\n", received):
            part = self.request.recv(4096)
            if not part:
                return
            received += part
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@contextmanager
def http_server() -> Iterator[int]:
    """A port on which something else listens."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HttpLike) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_port_that_is_not_free(cluster: Cluster) -> None:
    other = cluster.job("2:2")
    first = other.start("other-run", is_host=True)
    first.wait_for("hosting the store")
    with http_server() as port:
        on_http = cluster.job("1:1", port=port).start("on-http")
        on_other = cluster.job("1:1", port=other.port).start("on-other-run")
        # Longer than an earlier run may take to leave the port, far shorter than join_timeout.
        on_other.assert_fails(60.0)
        on_http.assert_fails(60.0)
    choose = "choose another port in --rdzv-endpoint"
    assert on_http.lines(rf"127\.0\.0\.1:{port}: (something|another program) listens there.*{choose}"), on_http.tail()
    serves = f"the store there serves run '{other.run_id}'"
    assert on_other.lines(rf"127\.0\.0\.1:{other.port}: {serves}.*{choose}"), on_other.tail()
    assert not first.has_exited
    first.kill()


def test_nodes_that_disagree(cluster: Cluster) -> None:
    job = cluster.job("2:2")
    first = job.start("first", is_host=True)
    first.wait_for("hosting the store")
    second = job.start("second", is_host=False, conf={"lease_timeout": 9})
    second.assert_fails()
    assert second.lines(r"lease_timeout \(here 9.0, the run has 5.0\)"), second.tail()
    assert not first.has_exited
    first.kill()
