"""The state of a run over HTTP: for programs, for Prometheus and for people.

Owns the routes, the page and the access rules. Writes nothing: no request can change a run, and none reaches its
coordinator.
"""
