"""Decisions: pure functions of what is known and a time, and the nouns they speak of.

Owns who seals when, who gets which rank, who is dead, whose fault it was, and the tables of what may follow what.
Knows no clock, no log, no store and no thread: everything it needs is an argument, everything it decides is a value.
"""
