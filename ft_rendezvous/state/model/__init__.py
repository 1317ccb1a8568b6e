"""What is known of a run, and the sentences that say it: a fold over the coordinator's journal.

Owns the schema of the state and of its events. Pure: no clock, no file, no socket.
"""
