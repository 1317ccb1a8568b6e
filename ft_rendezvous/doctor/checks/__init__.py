"""From facts to findings: pure functions, one or a few per question.

Owns what counts as a problem and what to do about it. Knows no clock, no socket, no torch and no environment.
"""
