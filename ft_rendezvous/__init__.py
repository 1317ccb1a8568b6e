"""A fault-tolerant rendezvous backend for torchelastic: `torchrun --rdzv-backend=ft`."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ft-rendezvous")
except PackageNotFoundError:  # Run from a source tree that is not installed.
    __version__ = "0.0.0"
