"""What a run cost, told afterwards: time trained, time lost, and to what.

Owns the sums and the page with its plots. Reads a state, never a run.
"""
