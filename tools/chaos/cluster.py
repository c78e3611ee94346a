"""Real nodes that talk to each other only through proxies of ours."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from bedrockish import open_client
from bedrockish.errors import BedrockishError
from tools.chaos.proxy import Network
from tools.cluster import READY_S, DemoError, LocalCluster, LocalNode, free_ports


class ProxiedCluster(LocalCluster):
    """Nodes whose links all go through a network that can be cut. Clients reach them directly."""

    def __init__(self, directory: Path, names: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(directory, names, settings)
        self.options = "discover=no"  # the members' addresses are proxies, for peers only
        self.network = Network({node.name: node.port for node in self.nodes})  # the links
        # Whether nodes connect without proxies, which new nodes need: all members know a member by one address.
        self.is_direct = False
        self.dark: set[Path] = set()  # files of nodes whose power is off, where no process may start

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return the proxy's address for the link from a node to a peer."""
        if self.is_direct:
            return super().peer_address(node, peer)
        return f"127.0.0.1:{self.network.lines[node.name, peer.name].port}"

    async def status(self, index: int, seconds: float = 3.0) -> dict[str, Any] | None:
        """Ask one node for its status; None if it does not answer."""
        return await self.status_at(self.nodes[index], seconds)

    async def status_at(self, node: LocalNode, seconds: float = 3.0) -> dict[str, Any] | None:
        """Ask a node for its status; None if it does not answer."""
        try:
            url = f"bedrockish://127.0.0.1:{node.port}/?connect_timeout=1&{self.options}"
            async with open_client(url) as client:
                return await client.status(timeout=seconds)
        except BedrockishError:
            return None

    async def join(self, name: str, *options: str) -> LocalNode:
        """Start a node that joins the others, without proxies, and return it when it is one of them.

        Raises:
            DemoError: it did not get in.
        """
        node = LocalNode(name, free_ports(1)[0], self.directory)
        lines = f'node = "{name}"\ndatabase = "{node.database.name}"\nlisten = "127.0.0.1:{node.port}"\n'
        node.config.write_text(lines)
        node.start("join", self.url(), *options)
        try:
            with trio.fail_after(READY_S):
                while await self.status_at(node) is None:
                    if not node.is_running:
                        raise DemoError(f"node {name} ended instead of joining; its log ends:\n{node.last_words()}")
                    await trio.sleep(0.1)
        except trio.TooSlowError:
            raise DemoError(f"node {name} has not joined after {READY_S:.0f} s") from None
        finally:
            self.nodes.append(node)
        return node

    async def wait_level(self, seconds: float) -> str:
        """Wait until all nodes have applied the same entries and no transaction is pending; else return the reason."""
        wrong = ""
        with trio.move_on_after(seconds):
            while True:
                wrong = _differences([await self.status(index) for index in range(len(self.nodes))])
                if not wrong:
                    return ""
                await trio.sleep(0.1)
        return wrong or "no answer"


def _differences(found: Sequence[dict[str, Any] | None]) -> str:
    answers = [one for one in found if one is not None]
    if len(answers) < len(found):
        return f"{len(found) - len(answers)} nodes do not answer"
    vectors = {one["node"]: one["applied"] for one in answers}
    if any(vector != answers[0]["applied"] for vector in vectors.values()):
        return f"the nodes have applied different things: {vectors}"
    doubt = {one["node"]: one["in_doubt"] for one in answers if one["in_doubt"]}
    return f"still in doubt: {doubt}" if doubt else ""


@asynccontextmanager
async def proxied_cluster(
    directory: Path,
    names: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    is_direct: bool = False,
    http: bool = False,
) -> AsyncIterator[ProxiedCluster]:
    """Start nodes with proxies between them, or without, and stop all of it at the end of the block.

    With ``http``, the nodes serve that, too. The errors are those of ``LocalCluster.write_files``.
    """
    cluster = ProxiedCluster(directory, names, settings or {})
    cluster.is_direct = is_direct
    if http:
        cluster.add_http()
    await cluster.network.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.network.run)
        with cluster.running():
            yield cluster
        nursery.cancel_scope.cancel()
