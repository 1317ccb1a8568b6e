"""What hosts a run: the store's server, the coordinator's threads, and the file with the verdict.

Owns the life of a run's store. Must not know torch's agent or a node that trains.
"""
