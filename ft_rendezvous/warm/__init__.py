"""Warm workers: a process with warm imports, the nursery, forks workers, so that no worker imports torch again.

Owns four kinds of processes: the client that torchrun starts (`client`), the node's nursery (`nursery_main`), a
guardian per worker (`guardian`), and the start of the worker itself (`becoming`). Decisions are pure functions in
`rules`. Must not know the run: it forks workers, and which workers start when is the agent's matter. A worker that
cannot be forked exactly as the ordinary interpreter would start it is not forked: it starts cold.
"""
