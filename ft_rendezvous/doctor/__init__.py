"""`ftr doctor`: a preflight. Nodes gather facts, one of them collects them, pure checks turn them into findings.

Owns what can go wrong before a run starts. Must work where torch is broken: only a process of its own imports torch.
"""
