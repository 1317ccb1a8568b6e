"""How a run is looked at from outside: its folder, its HTTP API, or its own store.

Owns what a reader believes of a torn or damaged log. Never writes to a log and needs no torch.
"""
