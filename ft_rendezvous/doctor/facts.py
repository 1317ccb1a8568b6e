"""The messages of the doctor's processes: facts of a node, facts of the endpoint, requests and answers.

Plain data, decoded strictly. Judges nothing: the checks do that.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

FACTS_VERSION = 2
"""Version of these messages. A node with another version is named, and not examined."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages and their parts."""


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
    """False: there was no answer when the doctor stopped waiting."""


class Route(Fact, frozen=True, kw_only=True):
    """From which address this node would reach the endpoint."""

    address: str
    is_here: bool
    """The endpoint names this machine."""
    is_loopback: bool
    interface: str = ""


class Torch(Fact, frozen=True, kw_only=True):
    """What a separate process found out by importing torch."""

    version: str = ""
    error: str = ""
    """Why it cannot be imported."""
    is_late: bool = False
    """The import had not ended when the doctor stopped waiting."""
    import_s: float = 0.0
    missing: tuple[str, ...] = ()
    """Parts of torch that this package needs and this torch does not have."""
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
    """The SLURM job, and the step if srun started this process."""

    job_id: str
    step_id: str = ""
    task: int = 0
    tasks: int = 1
    hosts: tuple[str, ...] = ()
    """The step's nodes in SLURM's order."""
    launched_from: str = ""
    """The address of the machine of srun: in a batch job, the first node."""
    is_array: bool = False
    """The job is a task of an array. Other tasks may have more nodes of the run."""
    flags: dict[str, str] = {}
    """Variables that change what srun does when a node is lost."""

    @property
    def key(self) -> str:
        return f"{self.job_id}.{self.step_id}"


class NodeFacts(Fact, frozen=True, kw_only=True):
    """All that a node reports about itself."""

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
    """Why the settings of this node alone cannot work."""
    is_host: bool = False
    """It would host the store."""
    is_hosting_unclear: bool = False
    """It cannot know whether to host."""
    hosting_reason: str = ""
    own_addresses: tuple[str, ...] = ()
    """Those of the endpoint's addresses that belong to this machine."""
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

    @property
    def shares_endpoint(self) -> bool:
        """Whether the endpoint has addresses of this machine and of others, as a headless Service has."""
        return 0 < len(self.own_addresses) < len(self.endpoint.found)


# --- the endpoint -----------------------------------------------------------------------------------


class EndpointState(StrEnum):
    """What is at the endpoint."""

    HELD = "held"
    """The port was free. The doctor holds it while it looks."""
    RUN = "run"
    OTHER_STORE = "other-store"
    STRANGER = "stranger"
    TAKEN = "taken"
    """The port is taken, but nothing answers at the endpoint."""
    FORBIDDEN = "forbidden"
    """The system does not let the doctor listen there."""
    NOTHING = "nothing"
    NO_ANSWER = "no-answer"
    UNKNOWN_HOST = "unknown-host"


class RunningRun(Fact, frozen=True, kw_only=True):
    run_id: str
    cycle_id: int
    is_sealed: bool
    verdict: str = ""
    """How it ended, if it did."""
    settings: dict[str, str] = {}


class LifelinePort(Fact, frozen=True, kw_only=True):
    """Where the store host listens for lifelines, or would."""

    port: int
    error: str = ""
    """Why it cannot listen there."""


class EndpointFacts(Fact, frozen=True, kw_only=True):
    state: EndpointState
    detail: str = ""
    run: RunningRun | None = None
    lifelines: LifelinePort | None = None
    """None: no lifelines are wanted, or it is not known where they would be."""


class Attempt(Fact, frozen=True, kw_only=True):
    """One try of a node to reach the endpoint at one of its addresses."""

    address: str
    seconds: float
    error: str = ""


class Controller(Fact, frozen=True, kw_only=True):
    """What SLURM's controller says. Only one node asks it."""

    kill_on_bad_exit: bool | None = None
    wait_s: int | None = None
    """srun ends the other nodes this long after the first has ended; 0: never."""
    no_kill: bool | None = None
    """The job was submitted with --no-kill; None: nothing shows whether it was."""
    script_flags: tuple[str, ...] = ()
    """Options of srun in the batch script that end all nodes when one ends, as they are written there."""


# --- requests and answers ---------------------------------------------------------------------------


class Hello(Fact, frozen=True, kw_only=True, tag="hello"):
    """The first line of a node. Its fields never change, in no version."""

    v: int
    key: str
    task: int
    host: str
    version: str


class Welcome(Fact, frozen=True, kw_only=True, tag="welcome"):
    """The first line of the collecting process."""

    key: str


class LookAtEndpoint(Fact, frozen=True, kw_only=True, tag="look"):
    """Look at the endpoint once. The node on its machine tries to hold the port, and the port of the lifelines."""

    token: str
    is_holder: bool
    lifeline_port: int | None = None
    """The setting; 0: any free port. None: no lifelines are wanted."""


class Reach(Fact, frozen=True, kw_only=True, tag="reach"):
    """Try every address of the endpoint. Without a token, a store is there."""

    token: str = ""


class ReachLifelines(Fact, frozen=True, kw_only=True, tag="reach-lifelines"):
    """Try to connect to the port of the lifelines. Without a token, a run has it."""

    port: int
    token: str = ""


class NameClients(Fact, frozen=True, kw_only=True, tag="name-clients"):
    """Look up the name of every client that came to the held port, as a TCPStore would."""


class ReadClock(Fact, frozen=True, kw_only=True, tag="read-clock"):
    pass


class End(Fact, frozen=True, kw_only=True, tag="end"):
    """The examination is over: exit with this code."""

    exit_code: int


class EndpointSeen(Fact, frozen=True, kw_only=True, tag="seen"):
    endpoint: EndpointFacts


class Attempts(Fact, frozen=True, kw_only=True, tag="attempts"):
    attempts: tuple[Attempt, ...]


class Clients(Fact, frozen=True, kw_only=True, tag="clients"):
    lookups: tuple[Lookup, ...]
    untried: int = 0
    """Clients for which there was no time."""


class ClockRead(Fact, frozen=True, kw_only=True, tag="clock"):
    at: float


class NodeReport(Fact, frozen=True, kw_only=True, tag="report"):
    facts: NodeFacts


NodeRequest = Welcome | LookAtEndpoint | Reach | ReachLifelines | NameClients | ReadClock | End
NodeAnswer = Hello | NodeReport | EndpointSeen | Attempts | Clients | ClockRead
