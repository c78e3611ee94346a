"""Discovery: the addresses of a cluster's nodes, and their order by distance when a client opens."""

import os
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bedrockish.api.url import NEAREST, RANDOM, Address, Target, parse_address
from bedrockish.client.credentials import ClientCredentials
from bedrockish.common.machine import start_thread, threads_or_unavailable
from bedrockish.common.pauses import monotonic
from bedrockish.errors import ConfigError
from bedrockish_net.errors import NetError
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits

MEASURE_S = 1.0  # timeout of a handshake whose time is measured; slower nodes come last


def nearest_first(target: Target, credentials: ClientCredentials) -> tuple[Address, ...]:
    """Return the nodes of a URL, ordered by the time of a handshake: network, TLS and the node's own delay count."""
    took: dict[Address, float] = {}
    hello, seconds = Hello(f"client-{os.getpid()}", target.cluster, "client"), min(MEASURE_S, target.connect_timeout_s)

    def measure(address: Address) -> None:
        began = monotonic()
        try:
            link = credentials.dial_socket(address, hello, seconds, LinkLimits())
        except (NetError, OSError):
            return
        took[address] = monotonic() - began
        link.close()

    threads = [threading.Thread(target=measure, args=(address,), daemon=True) for address in target.addresses]
    for thread in threads:
        with threads_or_unavailable():
            start_thread(thread.start)
    until = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - monotonic()))
    known = dict(took)  # a copy: threads of slower nodes may still add to ``took`` during the sort
    return tuple(sorted(target.addresses, key=lambda address: known.get(address, float("inf"))))


def in_dial_order(target: Target, credentials: ClientCredentials) -> tuple[Address, ...]:
    """Return the nodes of a URL in the order in which to try them; the node of the local file comes first.

    With the choice ``nearest`` this waits for the handshakes, up to ``MEASURE_S``.

    Raises:
        UnavailableError: the machine gives no thread in which to measure.
    """
    if target.local is not None:
        rest = replace(target, addresses=target.addresses[1:], local=None)
        return (target.addresses[0], *in_dial_order(rest, credentials))
    if target.choice == NEAREST and len(target.addresses) > 1:
        return nearest_first(target, credentials)
    if target.choice == RANDOM:
        return tuple(random.sample(target.addresses, len(target.addresses)))
    return target.addresses


def members_of(value: object) -> dict[Address, bool]:
    """Return the addresses of a cluster's members, each with whether the node that was asked reaches it."""
    found: dict[Address, bool] = {}
    facts: Any
    for name, facts in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(facts, Mapping) or not isinstance(facts.get("address"), str):
            continue
        try:
            found[parse_address(facts["address"], where=f"the address of {name}")] = bool(facts.get("up", True))
        except ConfigError:
            continue  # no address to dial, such as port 0 of a node whose port the system has chosen
    return found
