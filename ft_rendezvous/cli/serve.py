"""`ftr serve`: hosts store and coordinator of a run in a separate process, which outlives compute nodes."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from ft_rendezvous.cli.exit_codes import CANCELLED, FAILED
from ft_rendezvous.config.load import load_settings
from ft_rendezvous.config.settings import NodeSettings, Settings
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import parse_nnodes

log = logging.getLogger("ft_rendezvous")

SIGNAL_CHECK_S = 0.5
"""Python acts on a signal between two steps of its main thread. One that comes just before the thread begins to wait
does not end the wait, so the wait must end by itself."""

VERDICT_EXIT_CODES = {VerdictKind.SUCCEEDED: 0, VerdictKind.FAILED: FAILED, VerdictKind.CANCELLED: CANCELLED}


def parse_conf(text: str) -> dict[str, str]:
    """The settings of `k=v,k=v`, as torchrun reads them."""
    conf: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"--rdzv-conf: {part!r} is not key=value")
        conf[key] = value
    return conf


def parse_serve(endpoint: str, run_id: str, nnodes: str, conf: str) -> Settings:
    """All settings of the store, checked before anything is started. Raises ConfigError."""
    min_nodes, max_nodes = parse_nnodes(nnodes)
    return load_settings(
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        conf=parse_conf(conf),
    )


def run_serve(settings: Settings, log_level: str) -> int:
    """Serve until the run is closed and all nodes have left. Returns the exit code of the verdict."""
    # Both import torch, which takes seconds. A bad setting is reported before.
    from ft_rendezvous.host.logs import set_up_logging  # noqa: PLC0415
    from ft_rendezvous.host.serve import serve  # noqa: PLC0415

    set_up_logging(log_level)
    endpoint, run_id = settings.node.endpoint, settings.run.run_id
    _warn_of_endpoint(settings.node)
    try:
        path = settings.node.verdict_file
        verdict_path = Path(path) if path else None
        node = settings.node
        host = serve(
            settings.run,
            node.endpoint_port,
            verdict_path=verdict_path,
            state=settings.state,
            advertised_addr=node.endpoint_host,
            lifeline_port=node.lifeline_port,
        )
    except OSError as error:
        raise _cannot_listen(settings.node.endpoint_port, error) from error
    try:
        log.info("serving run %r at %s for --nnodes=%s", run_id, endpoint, settings.run.as_dict()["nnodes"])
        while not host.wait(SIGNAL_CHECK_S):
            pass
    finally:
        verdict = host.verdict
        host.stop()
    return verdict_exit_code(verdict)


def _warn_of_endpoint(node: NodeSettings) -> None:
    """Warn if nodes may not find the store by its endpoint. They may have another resolver, so this is no error."""
    from ft_rendezvous.store import net, raw_client  # noqa: PLC0415 - They cost time that other commands need not spend.

    try:
        addresses = raw_client.find_addresses(node.endpoint_host, node.endpoint_port)
    except raw_client.NoStore as unknown:
        log.warning(
            "the endpoint %s: %s: nodes wait until they know the name; check it in --endpoint, and what "
            "`getent ahosts %s` prints on a node",
            node.endpoint,
            unknown.fact,
            node.endpoint_host,
        )
        return
    own = [route for route in net.routes_to(addresses, node.endpoint_port) if route.is_here]
    if not own:
        log.warning("the endpoint %s does not name this machine: nodes will look for the store there", node.endpoint)
    elif len(own) < len(addresses):
        log.warning(
            "the endpoint %s has addresses of other machines, too: set is_host=false on all nodes, or one of them "
            "hosts a second store",
            node.endpoint,
        )


def verdict_exit_code(verdict: Verdict | None) -> int:
    return FAILED if verdict is None else VERDICT_EXIT_CODES[verdict.kind]


def _cannot_listen(port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} is taken on this machine: choose another in --endpoint, here and on all nodes, "
            f"or find the process that has it: ss -ltnp 'sport = :{port}'"
        )
    return ConfigError(
        f"the system does not allow to listen on port {port}: {error.strerror}: choose another in --endpoint"
    )
