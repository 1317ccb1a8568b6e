"""The command line, `ftr`.

Owns options, help and what a terminal shows. Imports torch only when a command needs it.
"""
