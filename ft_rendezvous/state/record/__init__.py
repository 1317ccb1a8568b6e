"""How the state of a run is kept: the recorder beside the coordinator, and the keeper process with its log.

Owns the numbering of events and the files of `state_dir`. Must not delay the coordinator.
"""
