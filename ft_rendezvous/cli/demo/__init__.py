"""`ftr demo`: a real run on this one machine, with a node that is killed.

Owns the story that a new user sees. Uses the same launcher and the same events as everybody else.
"""
