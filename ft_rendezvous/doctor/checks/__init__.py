"""From facts to findings: pure functions, one or a few per question. No clock, no socket, no torch, no environment."""
