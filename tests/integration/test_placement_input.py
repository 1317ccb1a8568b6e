"""Where nodes are, as torchrun is told it: a source works, and a node of which too little is known stops at once."""

from __future__ import annotations

import pytest

from tests.support.torchrun_cluster import Cluster, Node, assert_quiet

# Its workers do not import torch: nobody here needs to hear from another worker.
ALONE = ["--alone-below", 2, "--tell-info"]


def assert_stops_at_once(node: Node, fact: str) -> None:
    """It fails, and all that the backend says is one line; the traceback is torchrun's own way to end."""
    node.assert_fails()
    (line,) = node.lines(r"^\[ft ")
    assert f"ERROR] {fact}" in line, node.tail()
    assert node.log.count("Traceback") <= 1, node.tail()


def test_a_node_without_a_domain(cluster: Cluster) -> None:
    node = cluster.job("2:2", conf={"segment": 2}).start("nowhere", env={"SLURMD_NODENAME": "gpu7"})
    assert_stops_at_once(node, "segment=2 needs every node's domain, and node gpu7 has none: set domain_from")


def test_a_source_that_says_nothing(cluster: Cluster) -> None:
    node = cluster.job("1:1", conf={"domain_from": "command:exit 3"}).start("silent", env={"SLURMD_NODENAME": "gpu7"})
    assert_stops_at_once(node, "domain_from=command:exit 3 says nothing of node gpu7: the command exited with 3")


@pytest.mark.parametrize("where", ["command line", "file"])
def test_a_command_says_where_nodes_are(cluster: Cluster, where: str) -> None:
    """In a file a command may have commas, on which torchrun splits."""
    conf: dict[str, object] = {"segment": 2, "domain_from": "command:echo row2-$RACK"}
    if where == "file":
        path = cluster.path("ft.toml")
        path.write_text("""segment = 2\ndomain_from = "command:printf '%s,%s' row2 $RACK"\n""")
        conf = {"config": path}
    job = cluster.job("2:3", worker=ALONE, conf=conf)
    between = "," if where == "file" else "-"
    # The first in topology order, but alone in its domain: it can fill no segment.
    single = job.start("single", is_host=True, infra_rank=0, env={"RACK": "rack1"})
    pair = [job.start("left", is_host=False, infra_rank=1, env={"RACK": "rack2"})]
    lacks = f"left over: 1 in domain row2{between}rack1, 1 in domain row2{between}rack2"
    single.wait_for(f"waiting cycle=1: 0 of 1 segments of 2 can be filled; {lacks}")
    pair += [job.start("right", is_host=False, infra_rank=2, env={"RACK": "rack2"})]
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    for rank, node in enumerate(pair):
        (info,) = node.reports("info")
        assert (info["domain"], info["node_rank"]) == (f"row2{between}rack2", str(rank))
    assert single.reports("info") == []
