"""Deterministic simulation of a whole run: the real protocol code, a simulated store, virtual time, faults.

One seed derives everything. `world` builds and runs it, `checkers` watch it from outside, `variants` break the
protocol on purpose to prove that the checkers see.
"""
