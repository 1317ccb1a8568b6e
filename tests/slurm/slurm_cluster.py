"""A SLURM cluster on one machine: munged, slurmctld, and one slurmd for each of six nodes, all of it in one folder.

What is SLURM's is here: the daemons, their configuration, the loss of a node. What is a job's is in `jobs.py`. The
cluster needs root, but neither systemd nor cgroups; it has a munge key and socket of its own, and ports that the system
gives, so it disturbs no other SLURM.

Everything that belongs to it, whether daemon, step or task, has the path of its `slurm.conf` in its environment. That
is how the processes of a lost node are found, and how `close()` knows that nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import WAIT_S, wait_until

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
SWITCHES = {"s1": NODES[:3], "s2": NODES[3:]}
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "salloc", "srun", "scontrol", "squeue", "scancel")
INSTALL = "apt-get install -y slurm-wlm munge"

SLURMD_TIMEOUT_S = 6
"""A node whose slurmd does not answer for so long is DOWN."""

SLURM_CONF = """\
ClusterName=ft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job may start again only when the credentials of its last start have expired: two minutes by default.
AuthInfo=socket={root}/munge/socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
ReturnToService=2
SlurmdTimeout={slurmd_timeout_s}
MessageTimeout=3
KillWait=10
# Only the backfill scheduler starts heterogeneous jobs.
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_min_age_reserve=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# The machine has fewer CPUs than its six nodes claim.
SlurmdParameters=config_overrides
{nodes}
# Jobs have nodes for themselves, as where nodes have GPUs.
PartitionName=DEFAULT OverSubscribe=EXCLUSIVE
PartitionName=main Nodes=n[1-6] Default=YES State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=n[1-6] State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
"""

_FOREIGN = re.compile(r"(SLURM|SBATCH|SALLOC|MUNGE|FT_|TORCH|MASTER_|OMP_|GLOO_|PMI|(RANK|WORLD_SIZE|LOCAL_RANK)$)")


def is_installed() -> bool:
    """Whether this machine has SLURM's programs, and we may start them."""
    return os.geteuid() == 0 and all(shutil.which(program, path=_program_path()) for program in PROGRAMS)


def tail(path: Path, lines: int = 40) -> str:
    """The end of a file, under its name."""
    text = path.read_text(errors="replace") if path.exists() else "(no such file)"
    return "\n".join([f"--- {path.name} ---", *text.splitlines()[-lines:]])


# --- processes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A live process of the cluster."""

    pid: int
    parent: int
    node: str
    """The node it runs on; empty for the controller and for commands that users run."""
    command: str
    environ: Mapping[str, str]


def find_processes(conf: Path) -> list[Process]:
    """Every live process that belongs to the cluster with this configuration; a zombie is not live."""
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        environ = dict(item.partition("=")[::2] for item in variables)
        if command and environ.get("SLURM_CONF") == str(conf):
            found.append(Process(int(entry.name), parent, environ.get("SLURMD_NODENAME", ""), command, environ))
    return found


def send(pids: Sequence[int], sig: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


def kill_all(find: Callable[[], Sequence[Process]]) -> None:
    """SIGKILL all that `find` finds, until it finds nothing."""

    def kill() -> bool:
        # Children first: a stopped process whose parent dies is sent SIGHUP and SIGCONT.
        pids = sorted((process.pid for process in find()), reverse=True)
        # Stopped first: nobody sees a neighbour go and acts on it, nobody starts another process.
        send(pids, signal.SIGSTOP)
        send(pids, signal.SIGKILL)
        return not pids

    wait_until("no process is left", kill, explain=lambda: "\n".join(map(str, find())))


def _program_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


# --- the cluster ------------------------------------------------------------------------------------


class SlurmCluster:
    """Six nodes n1 to n6, three under each of two switches; partitions `main`, and `low` that `main` preempts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self.env = self._clean_environment()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """A cluster all of whose nodes are idle; afterwards, nothing is left of it, however it went."""
        try:
            self._configure()
            self._start()
            yield self
        finally:
            self.close()

    def close(self) -> None:
        """End every process of the cluster and of its jobs."""
        for daemon in self._daemons.values():
            daemon.kill()
        kill_all(lambda: find_processes(self.conf))
        for daemon in self._daemons.values():
            daemon.wait()

    # --- commands -----------------------------------------------------------------------------------

    def run(
        self,
        *command: object,
        check: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = WAIT_S,
    ) -> str:
        """The output of one of SLURM's commands."""
        ended = subprocess.run(
            [str(word) for word in command],
            env={**self.env, **(env or {})},
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or ended.returncode == 0, f"{command}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    def show(self, what: str, name: object) -> dict[str, str]:
        """What `scontrol show` says of a job or a node, by SLURM's own names; empty if it knows nothing of it."""
        text = self.run("scontrol", "-o", "show", what, name, check=False)
        # Of a heterogeneous job, or an array, the first line.
        return dict(re.findall(r"(\S+?)=(.*?)(?=\s+[\w/:]+=|$)", text.partition("\n")[0]))

    def node_states(self) -> dict[str, str]:
        """All nodes' states as sinfo has them: `idle`, `alloc`, `down*`, ..."""
        text = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t")
        return dict(line.split() for line in text.splitlines())

    # --- nodes --------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Everything of the cluster and of its jobs, but the daemons themselves."""
        daemons = {daemon.pid for daemon in self._daemons.values()}
        found = find_processes(self.conf)
        # slurmctld has a helper of its own.
        return [each for each in found if each.pid not in daemons and each.parent not in daemons]

    def assert_nothing_runs(self) -> None:
        """Jobs have left no process, and the queue is empty: there is nothing to cancel."""
        assert self.run("squeue", "--noheader") == "", self.explain()
        # A step's daemon says goodbye to slurmctld after its job has ended.
        wait_until("no process runs", lambda: not self.processes(), 10.0, lambda: f"{self.processes()}")

    def lose(self, node: str) -> None:
        """The node dies without a word: its slurmd, its step daemons, and every process it runs."""
        self._daemons[node].kill()
        kill_all(lambda: [process for process in find_processes(self.conf) if process.node == node])
        self._daemons.pop(node).wait()

    def wait_down(self, node: str) -> None:
        """SLURM has noticed that the node is lost."""
        wait_until(f"{node} is down", lambda: "down" in self.node_states()[node], explain=self.explain)

    def revive(self, *nodes: str) -> None:
        """The nodes come back as after a reboot, and SLURM gives them to jobs again."""
        for node in nodes:
            self._start_slurmd(node)
        self._wait_idle(nodes)

    def repair(self) -> None:
        """A cluster as new: no job, every node idle. What a test leaves behind is no other test's trouble."""
        self.run("scancel", "--full", "--user=root", check=False)
        self.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
        wait_until("no job is left", lambda: not self.run("squeue", "--noheader"), explain=self.explain)
        kill_all(self.processes)
        self.revive(*(node for node in NODES if node not in self._daemons))
        self._wait_idle(NODES)

    def _wait_idle(self, nodes: Sequence[str]) -> None:
        states: dict[str, str] = {}

        def look() -> bool:
            for name, daemon in self._daemons.items():
                said = tail(self.root / f"{name}.out")
                assert daemon.poll() is None, f"{name} has ended with {daemon.returncode}\n{said}"
            nonlocal states
            states = self.node_states()
            return all(states.get(node) == "idle" for node in nodes)

        wait_until(f"{nodes} are idle", look, explain=lambda: f"{states}\n{self.explain()}")

    def explain(self) -> str:
        """What the cluster thinks, and the ends of its daemons' logs."""
        said = [self.run(command, check=False) for command in ("sinfo", "squeue")]
        return "\n".join([*said, *(tail(path, 15) for path in sorted(self.root.glob("*.log")))])

    # --- starting -----------------------------------------------------------------------------------

    def _clean_environment(self) -> dict[str, str]:
        """What jobs see: this Python's programs first, this cluster, and nothing of another job."""
        inherited = {key: value for key, value in os.environ.items() if not _FOREIGN.match(key)}
        path = f"{Path(sys.executable).parent}:{_program_path()}"
        return {**inherited, "PATH": path, "SLURM_CONF": str(self.conf)}

    def _configure(self) -> None:
        for name in ("state", "munge", *(f"spool-{node}" for node in NODES)):
            (self.root / name).mkdir(parents=True)
        (self.root / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (self.root / "munge" / "key").chmod(0o600)
        host = socket.gethostname()
        port, *node_ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8 RealMemory=1000"
            for node, node_port in zip(NODES, node_ports, strict=True)
        )
        self.conf.write_text(
            SLURM_CONF.format(host=host, port=port, root=self.root, nodes=nodes, slurmd_timeout_s=SLURMD_TIMEOUT_S)
        )
        leaves = [f"SwitchName={switch} Nodes={','.join(below)}" for switch, below in SWITCHES.items()]
        # Without a switch above them no job could have nodes of both.
        (self.root / "topology.conf").write_text(
            "\n".join([*leaves, f"SwitchName=top Switches={','.join(SWITCHES)}\n"])
        )

    def _start(self) -> None:
        munge = self.root / "munge"
        self._spawn(
            "munged",
            *("munged", "--foreground", "--force", "--num-threads=2"),
            *(f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")),
            f"--socket={munge / 'socket'}",
        )
        wait_until("munged answers", (munge / "socket").exists, explain=self.explain)
        self._spawn("slurmctld", "slurmctld", "-D", "-f", self.conf)
        for node in NODES:
            self._start_slurmd(node)
        self._wait_idle(NODES)

    def _start_slurmd(self, node: str) -> None:
        # Step daemons inherit slurmd's environment, tasks have the variable from SLURM.
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", self.conf, env={"SLURMD_NODENAME": node})

    def _spawn(self, name: str, *command: object, env: Mapping[str, str] | None = None) -> None:
        with (self.root / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                # Whatever ends the tests, a daemon does not outlive them.
                ["setpriv", "--pdeathsig", "KILL", *(str(word) for word in command)],
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                start_new_session=True,
            )


def free_ports(count: int) -> list[int]:
    """Ports that the system gives and nobody holds, no two the same."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("0.0.0.0", 0))
        return [int(each.getsockname()[1]) for each in sockets]
