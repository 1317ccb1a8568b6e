"""What the doctor's processes tell each other: facts of one node, facts of the endpoint, requests and answers.

Plain data, decoded strictly. Judges nothing; `checks` does.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

FORMAT = 1
"""Version of what follows. A node of another version is named, and not examined."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that travels."""


# --- one node ---------------------------------------------------------------------------------------


class Lookup(Fact, frozen=True, kw_only=True):
    """One question to the resolver."""

    of: str
    """A host name, or an address."""
    seconds: float
    found: tuple[str, ...] = ()
    """Addresses of a name; the name of an address."""
    error: str = ""
    is_over: bool = True
    """False: it had not been answered when we stopped waiting."""


class Route(Fact, frozen=True, kw_only=True):
    """Where this node would talk to the endpoint from."""

    address: str
    is_here: bool
    """The endpoint names this very machine."""
    is_loopback: bool
    interface: str = ""


class Torch(Fact, frozen=True, kw_only=True):
    """What a process of its own found out by importing torch."""

    version: str = ""
    error: str = ""
    """Why it cannot be imported."""
    is_late: bool = False
    """It had not been imported when we stopped waiting."""
    import_s: float = 0.0
    missing: tuple[str, ...] = ()
    """What this package builds on and this torch does not have."""
    store_s: float | None = None
    """How long a TCPStore takes from its start to its first answer."""
    has_numpy: bool = True


class Software(Fact, frozen=True, kw_only=True):
    python: str
    executable: str
    ft_rendezvous: str
    is_registered: bool
    """torchrun would find the backend `ft`."""
    torchrun: str
    """The one in PATH; empty if there is none."""
    torch: Torch


class Step(Fact, frozen=True, kw_only=True):
    """The SLURM job, and the step if srun started us."""

    job_id: str
    step_id: str = ""
    task: int = 0
    tasks: int = 1
    hosts: tuple[str, ...] = ()
    """The step's nodes in SLURM's order."""
    launched_from: str = ""
    """The address of srun's own machine: in a batch job that of the first node."""
    is_array: bool = False
    """The job is a task of an array, and other tasks may have more nodes of the run."""
    flags: dict[str, str] = {}
    """Variables that change what srun does when a node is lost."""

    @property
    def key(self) -> str:
        return f"{self.job_id}.{self.step_id}"


class NodeFacts(Fact, frozen=True, kw_only=True):
    """All that a node says of itself."""

    task: int
    host: str
    machine: str
    """Equal for processes that share a kernel and its network."""
    pid: int
    infra_rank: int | None = None
    domain: str | None = None
    unit: str | None = None
    settings: dict[str, str] = {}
    """The run's settings as this node reads them."""
    run_error: str = ""
    """Why they cannot work."""
    node_error: str = ""
    """Why this node's own cannot."""
    is_host: bool = False
    """It would host the store."""
    endpoint: Lookup
    own_name: Lookup
    route: Route | None
    reverse: tuple[Lookup, ...]
    resolver_options: str = ""
    files_soft: int
    files_hard: int
    outgoing_ports: tuple[int, int] | None = None
    """Ports that the system gives to outgoing connections."""
    software: Software
    step: Step | None = None


# --- the endpoint -----------------------------------------------------------------------------------


class State(StrEnum):
    """What is at the endpoint."""

    HELD = "held"
    """Nobody had the port; the doctor holds it while it looks."""
    RUN = "run"
    OTHER_STORE = "other-store"
    STRANGER = "stranger"
    TAKEN = "taken"
    """The port is taken, and yet nothing answers at the endpoint."""
    FORBIDDEN = "forbidden"
    """The system does not let us listen there."""
    NOTHING = "nothing"
    NO_ANSWER = "no-answer"
    UNKNOWN_HOST = "unknown-host"


class LiveRun(Fact, frozen=True, kw_only=True):
    run_id: str
    cycle_id: int
    is_sealed: bool
    verdict: str = ""
    """How it ended, if it did."""
    settings: dict[str, str] = {}


class Endpoint(Fact, frozen=True, kw_only=True):
    state: State
    detail: str = ""
    run: LiveRun | None = None


class Attempt(Fact, frozen=True, kw_only=True):
    """A node's try to reach the endpoint at one of its addresses."""

    address: str
    seconds: float
    error: str = ""


class Controller(Fact, frozen=True, kw_only=True):
    """What SLURM's controller says; only one node asks it."""

    kill_on_bad_exit: bool | None = None
    wait_s: int | None = None
    """srun ends the others so long after the first has ended; 0 is never."""
    no_kill: bool | None = None
    """The job was submitted with --no-kill; None: nothing that can be seen says so."""
    script_flags: tuple[str, ...] = ()
    """What the batch script passes to srun that ends all nodes with one of them, as it is written there."""


# --- requests and answers ---------------------------------------------------------------------------


class Hello(Fact, frozen=True, kw_only=True, tag="hello"):
    """The first line of a node. Its fields stay as they are in every version."""

    v: int
    key: str
    task: int
    host: str
    version: str


class Welcome(Fact, frozen=True, kw_only=True, tag="welcome"):
    """The first line of the collecting process."""

    key: str


class Look(Fact, frozen=True, kw_only=True, tag="look"):
    """Look at the endpoint, once; whoever is its machine tries to hold the port."""

    token: str
    is_holder: bool


class Reach(Fact, frozen=True, kw_only=True, tag="reach"):
    """Try every address of the endpoint; without a token, a store is there."""

    token: str = ""


class NameClients(Fact, frozen=True, kw_only=True, tag="name-clients"):
    """Look up everybody who came to the held port, as a TCPStore there would."""


class ReadClock(Fact, frozen=True, kw_only=True, tag="read-clock"):
    pass


class End(Fact, frozen=True, kw_only=True, tag="end"):
    """All is known: exit with this code."""

    exit_code: int


class Seen(Fact, frozen=True, kw_only=True, tag="seen"):
    endpoint: Endpoint


class Attempts(Fact, frozen=True, kw_only=True, tag="attempts"):
    attempts: tuple[Attempt, ...]


class Clients(Fact, frozen=True, kw_only=True, tag="clients"):
    lookups: tuple[Lookup, ...]
    untried: int = 0
    """How many there was no time for."""


class Clock(Fact, frozen=True, kw_only=True, tag="clock"):
    at: float


class Report(Fact, frozen=True, kw_only=True, tag="report"):
    facts: NodeFacts


Request = Welcome | Look | Reach | NameClients | ReadClock | End
Answer = Hello | Report | Seen | Attempts | Clients | Clock
