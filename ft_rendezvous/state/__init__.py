"""Who is where and what happened: what is known of a run, live and afterwards.

Nothing here decides anything about a run. The coordinator's journal is the only source; what is known is a fold over
it.
"""
