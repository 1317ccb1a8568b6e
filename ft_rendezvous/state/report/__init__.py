"""What a run cost: time trained, time lost, and the causes.

Owns the sums and the page with its plots. Reads a state, never a run.
"""
