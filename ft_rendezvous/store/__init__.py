"""Access to a TCPStore: torch's client and server, our own socket client, addresses, and the workers' store.

Owns connections and sockets. It does not know cycles or nodes, and decides nothing.
"""
