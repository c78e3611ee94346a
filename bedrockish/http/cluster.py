"""What the dashboard shows: this node's status and events beside those of its peers, asked through the ordinary client.

So one node's page shows the whole cluster, and peers need no HTTP of their own.
"""

from collections.abc import Mapping
from typing import Any

import trio

from bedrockish.client.aio import open_client
from bedrockish.client.entry import Entry
from bedrockish.errors import BedrockishError
from bedrockish.http.health import reaches, reasons
from bedrockish.runtime import Runtime

ANSWER_S = 1.5  # the page asks every second; a node that takes longer is shown as silent


async def whole_cluster(node: Runtime, after: Mapping[str, int], entry: Entry) -> dict[str, Any]:
    """Return status and events of every member, or why there are none.

    Args:
        node: this node.
        after: for each member, the number of the last event that the page has.
        entry: how this node comes in at its peers.
    """
    status = node.status()
    me = status["node"]
    found: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        for name, facts in status["nodes"].items():
            if name == me:
                continue
            if not reaches(facts):
                found[name] = {"error": facts["trouble"] or f"silent for {facts['silent_ms'] / 1000:.0f} s"}
                continue
            url = f"bedrockish://{facts['address']}/?connect_timeout=1&discover=no&cluster={status['cluster']}"
            nursery.start_soon(_ask, found, name, url, after.get(name, 0), entry)
    found[me] = {"status": status, "events": node.events(after.get(me, 0)), "not_ready": reasons(status)}
    return {"node": me, "cluster": status["cluster"], "nodes": dict(sorted(found.items()))}


async def _ask(found: dict[str, Any], name: str, url: str, after: int, entry: Entry) -> None:
    found[name] = {"error": "no answer"}
    with trio.move_on_after(ANSWER_S):
        try:
            async with open_client(url, entry=entry) as client:
                status = await client.status(timeout=ANSWER_S)
                events = await client.events(after, timeout=ANSWER_S)
            found[name] = {"status": status, "events": events, "not_ready": reasons(status)}
        except BedrockishError as error:
            found[name] = {"error": error.message}
