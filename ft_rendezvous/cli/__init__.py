"""The command line, `ftr`. Nothing here imports torch before a command needs it."""
