"""`ftr demo`: a real run on this one machine, with a node that is killed.

Owns what a new user sees of a run. Must use the same launcher and the same events as every other run.
"""
