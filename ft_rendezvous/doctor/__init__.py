"""`ftr doctor`: a check before a run. Nodes gather facts, the first node collects them, pure checks judge them.

Owns all checks of what can go wrong before a run starts. Must work where torch is broken: only a separate process
imports torch.
"""
