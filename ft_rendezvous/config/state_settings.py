"""What the store host may be told about recording a run and showing it."""

from __future__ import annotations

from dataclasses import dataclass

from ft_rendezvous.config.addresses import is_loopback
from ft_rendezvous.config.schema import setting
from ft_rendezvous.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Where a run's state is written and served; nothing of it unless one of the first two is set."""

    directory: str | None = setting(
        "state_dir", None, "Where the store host writes the run's events, one folder per run; see `ftr docs state`."
    )
    port: int | None = setting("state_port", None, "Where the store host serves the run's page, API and metrics.")
    addr: str = setting("state_addr", "127.0.0.1", "At which of its addresses; one that is not loopback needs a token.")
    token: str | None = setting(
        "state_token",
        None,
        "What a client must know; better in FT_STATE_TOKEN, which `ps` does not show.",
    )
    history: int = setting("state_history", 100, "Of how many cycles to keep the placement; of older ones a summary.")
    log_mb: int = setting("state_log_mb", 100, "How large a file of events may become before the next one is begun.")

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65536:
            raise ConfigError(f"state_port={self.port} is no port: 1 to 65535, or 0 for a free one")
        if self.port is not None and not is_loopback(self.addr) and not self.token:
            raise ConfigError(
                f"state_addr={self.addr} can be reached from other machines: set FT_STATE_TOKEN to a secret on the "
                "store host, or leave state_addr out and use ssh -L"
            )
        if self.log_mb < 1:
            raise ConfigError("state_log_mb=0 leaves no room for events: make it 1 or more")
