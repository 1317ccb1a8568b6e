"""A node's part in a run: how it finds the store, and the threads that speak and listen for it.

Owns the connections of one node, and the requests of an operator. Must not know torch's agent, and decides nothing:
what a node does is in `protocol`.
"""
