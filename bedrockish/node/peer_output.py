"""Output to peers: the facts in each HELLO, and the messages, which the durability gate may delay."""

import json
import logging
import secrets
from collections.abc import Callable
from typing import Any

import trio

from bedrockish import __version__
from bedrockish.core.describe import describe_said
from bedrockish.core.node import Node
from bedrockish.core.protocol import effects as do
from bedrockish.core.protocol.events import Event
from bedrockish.core.protocol.messages import Fetch, Gossip, Message, Piece, Want, encode
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage.system_tables import PLUGIN_NAMES
from bedrockish.node.cluster.identity import CLUSTER_LEVEL, ID, MEMBERS
from bedrockish.node.cluster.incarnations import Incarnations
from bedrockish.node.cluster.membership import begin_on_file, set_members
from bedrockish.node.plugins import Plugins
from bedrockish.node.scheduling.durability_gate import DurabilityGate
from bedrockish_journal.model.levels import LEVEL
from bedrockish_net.mesh import Mesh

logger = logging.getLogger(__name__)

PROMISES_NOTHING = frozenset({Fetch, Want, Piece})  # messages that need not wait until the open batch is durable


class PeerOutput:
    """Sends one node's messages to its peers, and has the facts for each HELLO."""

    def __init__(self, core: Node, engine: Engine, gate: DurabilityGate, plugins: Plugins) -> None:
        self._core, self._engine, self._gate = core, engine, gate
        engine.set_meta(PLUGIN_NAMES, json.dumps(plugins.defined()))  # for programs, before they may open the file
        # The facts in the node's HELLO, sent when a link is opened; ``batches`` counts only durable batches.
        self.info: dict[str, Any] = {"version": __version__, **begin_on_file(engine, secrets.token_bytes(8))}
        self.info |= {"plugins": plugins.hello_facts(), "level": LEVEL}
        self._tell_cluster()
        self.mesh: Mesh | None = None  # the links; None until they are open
        self.on_members: Callable[[], None] = lambda: None  # called when the members or the users have changed
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        self._early: dict[str, list[bytes]] = {}  # messages of this turn that need not wait for the open batch, by peer
        self._told_reserved = False  # whether our last gossip had a reservation

    def send(self, peer: str, message: Message, early: do.Early | None = None) -> None:
        """Send a message when the open batch is durable.

        It leaves in this turn already if it promises nothing, or if the facts that ``early`` names are durable.
        """
        if logger.isEnabledFor(logging.DEBUG):
            self.log(do.Send(peer, message))
        if message.__class__ in PROMISES_NOTHING:
            if self.mesh is not None:
                self.mesh.send_many(peer, (encode(message),), bulk=message.__class__ is Piece)
            return
        if self._encoded[0] is not message:  # the same message to several peers is encoded once
            self._encoded = (message, encode(message))
        engine = self._engine
        if early is not None and early.is_durable(engine.durable_ceiling, engine.durable.get(self._core.state.me, 0)):
            self._early.setdefault(peer, []).append(self._encoded[1])
            return
        if message.__class__ is not Gossip or self._is_urgent(message):
            self._gate.kept.is_urgent = True
        self._gate.kept.messages.setdefault(peer, []).append(self._encoded[1])

    def send_early(self) -> None:
        """Send the early messages of a turn, all at once to each peer: each system call costs time, here and there."""
        if self._early:
            early, self._early = self._early, {}
            if self.mesh is not None:
                for peer, payloads in early.items():
                    self.mesh.send_many(peer, payloads)

    def _is_urgent(self, gossip: Gossip) -> bool:
        """Return whether peers wait for a gossip: it has or ends a reservation, or a scheduled schema change needs its
        closed time.
        """
        was_reserved, self._told_reserved = self._told_reserved, gossip.reserved is not None
        return was_reserved or self._told_reserved or self._core.state.schema.scheduled is not None

    def log(self, said: Event | do.Send) -> None:
        """Log an event, or a message that leaves."""
        state, applied = self._core.state, self._engine.applied
        logger.debug("%s", describe_said(state.me, applied.get(state.me, 0), state.roster.membership.nodes, said))

    def set_members(self, known: Incarnations, nursery: trio.Nursery | None) -> None:
        """Put the present members into the facts for each HELLO; if the node runs, also keep links to them."""
        self._tell_cluster()
        self.on_members()
        if self.mesh is not None and nursery is not None:
            set_members(self.mesh, self._core, known, nursery)

    def _tell_cluster(self) -> None:
        membership = self._core.state.roster.membership
        self.info |= {ID: membership.cluster_id, CLUSTER_LEVEL: membership.level, MEMBERS: membership.nodes}
