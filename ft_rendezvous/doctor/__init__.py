"""`ftr doctor`: a preflight. Nodes gather facts, one of them collects them, pure checks turn them into findings."""
