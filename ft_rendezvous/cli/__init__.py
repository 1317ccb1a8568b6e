"""The command line, `ftr`.

Owns options, help texts and output. Must not import torch before a command needs it.
"""
