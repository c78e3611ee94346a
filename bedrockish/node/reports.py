"""The reports of a node about itself: its status, its statements and its open transactions."""

import time
from collections import Counter
from typing import Any, Protocol

from bedrockish.common.histogram import Histogram
from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.engine.engine import Engine
from bedrockish.node.admin.retention import Upkeep
from bedrockish.node.admin.status import describe_node
from bedrockish.node.admin.troubles import Troubles
from bedrockish.node.cluster.authentication import Credentials
from bedrockish.node.cluster.incarnations import Incarnations
from bedrockish.node.peer_intake import PeerIntake
from bedrockish.node.peer_output import PeerOutput
from bedrockish.node.plugins import Plugins
from bedrockish.node.scheduling.durability_gate import DurabilityGate
from bedrockish.node.scheduling.faults import Faults
from bedrockish.node.scheduling.statement_statistics import StatementStatistics
from bedrockish.node.scheduling.workers import WorkerPool
from bedrockish.node.transactions.manager import Transactions


class NodeParts(Protocol):
    """The parts of a node that its reports are about."""

    engine: Engine
    config: Config
    core: Node
    counts: Counter[str]
    plugins: Plugins
    workers: WorkerPool
    upkeep: Upkeep
    transactions: Transactions
    incarnations: Incarnations
    peers: PeerIntake
    faults: Faults
    gate: DurabilityGate
    output: PeerOutput

    def clock(self) -> Now:
        """Read the clocks."""


class Reports:
    """Makes one node's status, and answers the orders for its statements and open transactions."""

    def __init__(self, node: NodeParts, credentials: Credentials | None) -> None:
        self._node, self._credentials = node, credentials
        self._started = node.clock().wall_ms / 1000
        self._troubles = Troubles()
        self.latency = Histogram()  # the times from requests to their answers
        # Counts all statements, and logs the slow ones.
        self.statements = StatementStatistics(node.config.log.slow_ms / 1000)
        node.transactions.on_ran = self.statements.note
        orders, transactions = node.upkeep.orders, node.transactions
        orders["transactions"], orders["end"] = transactions.list_by_order, transactions.end_by_order
        orders["statements"], orders["lease"] = self.statements.order, transactions.programs.lease

    def status(self) -> dict[str, Any]:
        """Return the node's status."""
        node, mesh, credentials = self._node, self._node.output.mesh, self._credentials
        counts, refused = node.counts + node.workers.counts, {**node.incarnations.refused, **node.peers.address_faults}
        told = describe_node(node.core, node.engine, node.config, counts, mesh, refused, node.clock(), self._started)
        told |= {"plugins": node.plugins.describe(), "workers": node.workers.describe(), **node.upkeep.status()}
        told |= {"open_transactions": len(node.transactions), "open_streams": len(node.transactions.streams)}
        told |= {
            "certificates": credentials.ends if credentials is not None else {},
            "certificate_fault": credentials.fault() if credentials is not None else "",
            "certificates_revoked": len(credentials.revoked) if credentials is not None else 0,
            "wall_s": time.time(),
            **(mesh.describe() if mesh is not None else {}),
            **(node.faults.describe() | node.gate.fsync.describe()),
        }
        troubles = self._troubles.find(told, time.monotonic())
        worst = next((one["text"] for one in troubles if one["useless"]), None)
        return {**told, "trouble": worst, "troubles": troubles}
