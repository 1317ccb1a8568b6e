"""What users may say: settings, where a node is, and which settings can have no effect.

Owns the names, defaults and checks of every setting, and reads the environment. Decides nothing about a run.
"""
