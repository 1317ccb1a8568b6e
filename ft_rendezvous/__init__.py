"""A fault-tolerant rendezvous backend for torchelastic: `torchrun --rdzv-backend=ft`."""


def __getattr__(name: str) -> str:
    """The version, looked up when asked for: that takes longer than everything a worker imports from here."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("ft-rendezvous")
    except PackageNotFoundError:  # Run from a source tree that is not installed.
        return "0.0.0"
