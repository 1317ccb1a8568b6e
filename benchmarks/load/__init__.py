"""A load generator: thousands of nodes in one process, on non-blocking sockets, in one thread.

`speech` says the store's operations in bytes, `crowd` performs those of all nodes, `nodes` is what each node does: the
real participant, or the same number of raw operations.

A node has one connection here, where a real one has two: its writer and its listener take turns. That is possible from
the arrival to the seat, because the watch begins when the writer has nothing to do, and it leaves out the beats that
follow the first one. A node holds no socket for its workers either, it only names a port. So 10,000 nodes fit into the
20,000 files that a process may open.
"""

from benchmarks.load.nodes import form_ours, form_raw

__all__ = ["form_ours", "form_raw"]
