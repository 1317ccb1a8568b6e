"""Ten things that happen to a job, with `--rdzv-backend=ft` and with torch's `c10d`: the same commands, the same acts.

Nothing is asserted: what happened is observed, classified and shown, for both alike. The cluster is the one of the
integration tests.
"""
