"""Both sides of the protocol without input or output: the coordinator's, and a node's.

Owns the names and bytes in the store and the order of operations; PROTOCOL.md beside this file is the specification.
Performs nothing: it yields operations, and the host, a node's threads or the simulation perform them.
"""
