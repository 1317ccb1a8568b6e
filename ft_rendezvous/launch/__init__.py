"""Starting a run: one torchrun per node, on this machine or in a SLURM allocation."""
