"""From facts to findings: pure functions, one or a few per question.

Owns what is a problem and what to do about it. Must not use a clock, a socket, torch or the environment.
"""
