"""What hosts a run: the store's server, the coordinator's thread, and the file with the verdict.

Owns the life of a run's store. Must not know torch's agent, nor a node that trains.
"""
