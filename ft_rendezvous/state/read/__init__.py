"""Reads the state of a run from outside: from its folder, its HTTP API, or its own store.

Owns the rules for a torn or damaged log. Never writes to a log and needs no torch.
"""
