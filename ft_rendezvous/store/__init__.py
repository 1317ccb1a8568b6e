"""The way to a TCPStore: torch's client and server, our own socket client, addresses, and the workers' store.

Owns connections and sockets. Knows nothing of cycles, nodes or decisions.
"""
