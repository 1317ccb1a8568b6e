"""What is known of a run, told over HTTP: to programs, to Prometheus and to people.

Reads what the coordinator told and writes nothing: no request can change a run, and none reaches its coordinator.
"""
