"""Decides whether a node hosts the store, when the name of the endpoint may have the addresses of several machines.

A headless Service of Kubernetes has the address of every pod that DNS knows, and DNS learns them one after the other.
So a node that sees only its own address may still be one of many. Its index tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ft_rendezvous.text import is_address, listing

HOST_INDEX = 0
"""The node with this index hosts the store."""
MOST_ADDRESSES_SHOWN = 3


class HostingRole(StrEnum):
    """What a node does about the store."""

    HOST = "host"
    CLIENT = "client"
    UNCLEAR = "unclear"
    """Several machines could host, and this node cannot know which one does."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """What a node does about the store, and why."""

    role: HostingRole
    reason: str
    is_by_index: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What a node knows of itself that says whether it hosts."""

    is_host: bool | None = None
    """The user's word."""
    job_index: int | None = None
    """From JOB_COMPLETION_INDEX, which Kubernetes sets in the pods of an Indexed Job."""
    hostname: str = ""
    is_pod: bool = False
    """Whether the node runs in a pod of Kubernetes."""


def decide_hosting(
    identity: NodeIdentity, endpoint_host: str, addresses: frozenset[str], own: frozenset[str]
) -> Hosting:
    """Whether a node hosts the store. `own` are those of the endpoint's addresses that belong to this machine.

    DNS may still learn addresses, so the answer may change while no store is found. It never changes to HOST for a
    node with another index than 0.
    """
    if identity.is_host is not None:
        return Hosting(_role(identity.is_host), f"is_host={str(identity.is_host).lower()}")
    if not own:
        return Hosting(HostingRole.CLIENT, "the endpoint is not this machine")
    is_shared = own != addresses
    # All pods may have the host name of their Service. Only a machine may have an address that it does not know (NAT).
    if _names_one_machine(endpoint_host, identity.hostname) and not (is_shared and identity.is_pod):
        return Hosting(HostingRole.HOST, "the endpoint names this machine")
    index, source = _find_index(identity, is_shared)
    if index is not None:
        reason = f"{source}, and the node with index {HOST_INDEX} hosts"
        return Hosting(_role(index == HOST_INDEX), reason, is_by_index=True)
    if not is_shared:
        return Hosting(HostingRole.HOST, "the endpoint is this machine")
    shown = listing(sorted(addresses), MOST_ADDRESSES_SHOWN)
    return Hosting(
        HostingRole.UNCLEAR,
        f"{endpoint_host} has {len(addresses)} addresses ({shown}), and not all are of this machine: this node cannot "
        "know which node hosts the store",
    )


CLEAR_REMEDY = (
    "set --rdzv-conf is_host=true on one node and is_host=false on all others; or give every node an index, in "
    "JOB_COMPLETION_INDEX or at the end of its host name (train-0 hosts); or use an endpoint that names one machine"
)
"""What a user can do where the role is UNCLEAR."""


def _role(is_host: bool) -> HostingRole:
    return HostingRole.HOST if is_host else HostingRole.CLIENT


def _names_one_machine(endpoint_host: str, hostname: str) -> bool:
    """Whether the text of the endpoint says that it is one machine: an address, localhost, or this host's own name."""
    label, own_label = (name.partition(".")[0].lower() for name in (endpoint_host, hostname))
    return label in ("localhost", own_label) or is_address(endpoint_host)


def _find_index(identity: NodeIdentity, is_shared: bool) -> tuple[int | None, str]:
    """The node's index and where it stands.

    Outside of Kubernetes a number at the end of a host name is no index, unless the endpoint has other machines, too.
    """
    if identity.job_index is not None:
        return identity.job_index, f"JOB_COMPLETION_INDEX is {identity.job_index}"
    label = identity.hostname.partition(".")[0]
    match = re.search(r"-([0-9]+)$", label) if is_shared or identity.is_pod else None
    return (None, "") if match is None else (int(match[1]), f"the host name {label} ends in -{match[1]}")
