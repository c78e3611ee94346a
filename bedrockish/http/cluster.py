"""The data of the dashboard: the status of this node and of its peers, which this node asks by the ordinary client.

So the page of one node shows the whole cluster, and peers need no HTTP.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from bedrockish.client.credentials import Entry
from bedrockish.client.trio_client import Client, open_client
from bedrockish.errors import BedrockishError, UsageError
from bedrockish.node.admin.troubles import not_ready, reaches
from bedrockish.node.event_loop import Runtime

ANSWER_S = 1.5  # the page asks every second; a node that takes longer is shown as silent


Facts = dict[str, Any]
Asks = Callable[[str, Client], Awaitable[Facts]]  # asks the member with this name over this client


async def whole_cluster(node: Runtime, after: Mapping[str, int], entry: Entry) -> Facts:
    """Return status and events of every member, or the reason why a member did not answer.

    Args:
        after: for each member, the number of the last event that the page has.
        entry: the credentials for links to the peers.
    """

    async def ask(name: str, client: Client) -> Facts:
        status = await client.status(timeout=ANSWER_S)
        events = await client.events(after.get(name, 0), timeout=ANSWER_S)
        return {"status": status, "events": events, "not_ready": not_ready(status)}

    status = node.status()
    me = status["node"]
    mine = {"status": status, "events": node.events(after.get(me, 0)), "not_ready": not_ready(status)}
    return await _all(status, mine, ask, entry)


async def whole_activity(node: Runtime, entry: Entry) -> Facts:
    """Return the last hour, slow statements and open transactions of every member, or why it did not answer."""

    async def ask(_name: str, client: Client) -> Facts:
        return await client.upkeep({"do": "activity"}, timeout=ANSWER_S)

    return await _all(node.status(), await node.reports.describe_activity({}), ask, entry)


async def end_transaction(node: Runtime, name: str, transaction: str, entry: Entry) -> Facts:
    """End an open transaction at a member.

    Raises:
        UsageError: there is no such member, or no such transaction at it.
        BedrockishError: the member cannot be asked.
    """
    status = node.status()
    asked = {"do": "end", "command": transaction}
    if name == status["node"]:
        return await node.upkeep.handle(asked)
    facts = status["nodes"].get(name)
    if facts is None:
        raise UsageError(f"there is no node {name!r}; there is {', '.join(sorted(status['nodes']))}")
    async with open_client(_url(facts, status), entry=entry) as client:
        return await client.upkeep(asked, timeout=ANSWER_S)


async def _all(status: Facts, mine: Facts, ask: Asks, entry: Entry) -> Facts:
    """Ask every other member, and return all answers, this node's included."""
    found: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        for name, facts in status["nodes"].items():
            if name == status["node"]:
                continue
            if not reaches(facts):
                found[name] = {"error": facts["trouble"] or f"silent for {facts['silent_ms'] / 1000:.0f} s"}
                continue
            nursery.start_soon(_ask, found, name, _url(facts, status), ask, entry)
    found[status["node"]] = mine
    return {"node": status["node"], "cluster": status["cluster"], "nodes": dict(sorted(found.items()))}


def _url(facts: Facts, status: Facts) -> str:
    return f"bedrockish://{facts['address']}/?connect_timeout=1&discover=no&cluster={status['cluster']}"


async def _ask(found: Facts, name: str, url: str, ask: Asks, entry: Entry) -> None:
    found[name] = {"error": "no answer"}
    with trio.move_on_after(ANSWER_S):
        try:
            async with open_client(url, entry=entry) as client:
                found[name] = await ask(name, client)
        except BedrockishError as error:
            found[name] = {"error": error.message}
