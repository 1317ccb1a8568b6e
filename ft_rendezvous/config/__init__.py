"""Settings: what users may set, where a node is, and which settings have no effect.

Owns the name, default and check of every setting, and reads the environment. Decides nothing about a run.
"""
