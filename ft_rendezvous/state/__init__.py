"""What is known of a run, live and afterwards.

Owns everything between the coordinator's journal, which is its only source, and a person who reads. Decides nothing
about a run, and needs no torch.
"""
