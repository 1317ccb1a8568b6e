"""All decisions of the protocol, as pure functions of a snapshot and a time, and the types they use.

Owns: when a cycle is sealed, which node gets which rank, which node is dead, which node failed first, and the tables of
allowed state changes. It has no clock, log, store or thread: every input is an argument, every decision is a value.
"""
