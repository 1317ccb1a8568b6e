"""Starting a run: one torchrun per node, on this machine or in a SLURM allocation.

Owns the commands of all nodes, made from options and from what SLURM says, and the processes that it starts. Must not
know the protocol.
"""
