"""Starting a run: one torchrun per node, on this machine or in a SLURM allocation.

Owns the way from SLURM's words to commands, and the processes that it starts. Must not know the protocol.
"""
