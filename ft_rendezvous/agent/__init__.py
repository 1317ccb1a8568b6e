"""What torch's agent sees: the rendezvous handler, the agent's store, and the watch over its workers.

Owns everything that reaches into torch or touches worker processes, and translates errors to torch's. Must not decide
about a run: it asks `protocol`, and acts on the answer.
"""
