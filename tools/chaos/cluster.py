"""Real nodes that talk to each other only through our proxies."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tools.chaos.proxy import Network
from tools.cluster import LocalCluster, LocalNode


class ProxiedCluster(LocalCluster):
    """Nodes whose links all go through a network that can be cut. Clients reach them directly."""

    def __init__(self, directory: Path, names: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(directory, names, settings)
        self.options = "discover=no"  # the members' addresses are proxies, for peers only
        self.network = Network({node.name: node.port for node in self.nodes})  # the links
        # Whether nodes connect without proxies. Nodes that join need this: all members know a member by one address.
        self.is_direct = False
        self.dark: set[Path] = set()  # files of nodes whose power is off, where no process may start

    def peer_address(self, node: LocalNode, peer: LocalNode) -> str:
        """Return the proxy's address for the link from a node to a peer."""
        if self.is_direct:
            return super().peer_address(node, peer)
        return f"127.0.0.1:{self.network.lines[node.name, peer.name].port}"


@asynccontextmanager
async def proxied_cluster(
    directory: Path,
    names: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    is_direct: bool = False,
    http: bool = False,
) -> AsyncIterator[ProxiedCluster]:
    """Start nodes, with proxies between them unless ``is_direct``, and stop nodes and proxies at the end of the block.

    With ``http``, the nodes also serve HTTP. The errors are those of ``LocalCluster.write_files``.
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
