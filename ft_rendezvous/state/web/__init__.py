"""The state of a run over HTTP: for programs, for Prometheus and for people.

Owns routes, the page and who may connect. Writes nothing: no request can change a run, and none reaches its
coordinator.
"""
