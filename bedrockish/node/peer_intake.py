"""Input from peers: links that open and end, messages, refusals, and the HELLOs by which nodes recognise each other."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, assert_never

from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Accused, Event, PeerDown, PeerUp, Received
from bedrockish.core.protocol.messages import Gossip, UnknownMessageError, decode
from bedrockish.engine.engine import Engine
from bedrockish.node.admin.status import IT_WAITS, WAITING
from bedrockish.node.cluster.identity import ID
from bedrockish.node.cluster.incarnations import AMNESIA, OLDER_FILE, Incarnations, disbelieve
from bedrockish.node.cluster.membership import judge, recognise
from bedrockish.node.cluster.starts import STARTS, read_starts
from bedrockish.node.peer_output import PeerOutput
from bedrockish.node.plugins import Plugins
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_net import mesh as net
from bedrockish_net.errors import Code, RefusedError
from bedrockish_net.events import Hello

logger = logging.getLogger(__name__)

NEW_S = 86_400  # a file is new for so long, during the first run of its node


class Loop(Protocol):
    """The event loop of the node."""

    counts: Counter[str]  # the node's counters

    def post(self, event: Event) -> None:
        """Queue an event for the next turn."""

    def wake(self) -> None:
        """Begin the next turn as soon as possible."""


class PeerIntake:
    """A converter of the mesh's reports into events of the core."""

    def __init__(
        self, core: Node, engine: Engine, known: Incarnations, plugins: Plugins, output: PeerOutput, loop: Loop
    ) -> None:
        self._core, self._engine, self._known, self._plugins = core, engine, known, plugins
        self._output, self._loop, self._began = output, loop, time.monotonic()
        # The members at whose address a program answers that refuses this node or is not the member: node -> reason.
        self.address_faults: dict[str, str] = {}
        self._unknown_to = set[str]()  # the members that do not know this node
        self._removal = ""

    def on_net(self, event: net.MeshEvent) -> None:
        """Handle an event of the mesh."""
        match event:
            case net.PeerUp(node):
                logger.info("link to %s is up", node)
                self.address_faults.pop(node, None)
                self._unknown_to.discard(node)
                self._judge_membership()
                self._loop.post(PeerUp(node))
            case net.PeerDown(node, reason):
                logger.info("link to %s is down: %s", node, reason)
                self._loop.post(PeerDown(node))
            case net.TurnedAway(node, code, reason, info):
                why = reason.removeprefix("the other end refused: ")
                text = IT_WAITS if code == WAITING else "the program at its address refuses the connection: "
                self.address_faults[node] = text + why
                if code in (AMNESIA, OLDER_FILE) and self._core.state.roster.joining is None:
                    self._accused(node, code, reason, info)
                if code == Code.UNKNOWN_MEMBER:
                    self._unknown_to.add(node)
                    self._judge_membership()
            case net.Received(node, payloads):
                for payload in payloads:
                    try:
                        message = decode(payload)
                    except UnknownMessageError as error:
                        self._loop.counts["malformed"] += 1
                        logger.warning("%s sent a message of an unknown kind, which is ignored: %s", node, error)
                        continue
                    except EntryMalformedError as error:
                        self.reject(node, str(error))
                        break
                    if isinstance(message, Gossip):
                        self._known.learn(node, message.store, message.batches)
                    self._loop.post(Received(node, message))
            case _:
                assert_never(event)

    def _judge_membership(self) -> None:
        """Stop serving while most of the other voters do not know this node: it was removed while it was down.

        The node does not get the entry of its removal, because no member sends it entries any more.
        """
        state = self._core.state
        others = {node for node in state.roster.voters if node != state.me}
        is_out = state.roster.joining is None and 2 * len(self._unknown_to & others) > len(others)
        if is_out and not state.stuck:
            strange_to = ", ".join(sorted(self._unknown_to))
            self._removal = (
                f"node {state.me} is no longer a member of the cluster, according to {strange_to}; "
                "stop this node, and connect to them"
            )
            logger.error("%s", self._removal)
            state.give_up_fetching(self._removal)
        elif not is_out and state.stuck and state.stuck == self._removal:
            state.stuck = ""
        self._loop.wake()

    def reject(self, peer: str, reason: str) -> None:
        """End the link on which a peer sent an unreadable message; the messages before it are still handled."""
        self._loop.counts["malformed"] += 1
        if self._output.mesh is not None:
            self._output.mesh.reject(peer, reason)

    def _accused(self, node: str, code: str, reason: str, info: Mapping[str, Any]) -> None:
        """Post ``Accused`` if a peer of this cluster reports that our file has lost writes, and this can be true."""
        ours = self._output.info
        is_foreign = ours[ID] and info.get(ID) != ours[ID]
        why_not = "it is not of this cluster" if is_foreign else disbelieve(info, ours, self._engine.batch.number)
        if why_not:
            logger.error("node %s refuses this node; the refusal is ignored because %s: %s", node, why_not, reason)
            return
        logger.error("node %s refuses this node: %s", node, reason)
        self._loop.post(Accused(node, reason, for_good=code == OLDER_FILE))

    def judge(self, hello: Hello) -> None:
        """Refuse a peer of another cluster, or a peer that has lost its promises; see ``membership.judge``."""
        judge(self._core, self._known, hello)
        self._plugins.learn(hello.node, hello.info.get("plugins"))
        self._loop.wake()  # the next turn saves the facts that were learnt about the peer's file

    def on_stranger(self, hello: Hello) -> None:
        """Stop serving if another cluster has this node as a member and our file is new: the right file is missing.

        A node without a file and without peers in its configuration founds a cluster of its own. Clients of the other
        cluster would then write to that one.
        """
        state, theirs = self._core.state, hello.info.get(ID)
        ours = state.roster.membership
        if (
            hello.to != state.me
            or theirs in (None, "", ours.cluster_id)
            or set(ours.nodes) != {state.me}
            or state.stuck
        ):
            return
        is_first = len(read_starts(self._output.info[STARTS])) == 1 and time.monotonic() - self._began < NEW_S
        if not is_first and state.timelines.applied:
            return
        # The loop must not wait for the thread that has the writer: the peer dials again.
        if self._engine.batch.is_in_thread or self._engine.get_meta("began_with").get("began_with"):
            return  # a cluster that was founded with tables has the right file, such as a restored one
        why = (
            f"{hello.node} has node {state.me} as a member of another cluster, and the file of this one is new: stop "
            "this node, and put the right file back, such as by mounting its disk; if it is lost, run "
            f"'bedrockish member replace URL {state.me} NEW' at {hello.node}; to keep this new cluster instead, stop "
            f"{hello.node}, and start this node again"
        )
        logger.error("%s", why)
        state.give_up_fetching(why)
        self._loop.wake()

    def recognise(self, hello: Hello) -> None:
        """Check the identity of a peer that answers at its address; see ``membership.recognise``."""
        try:
            recognise(self._core, hello)
        except RefusedError as error:
            self.address_faults[hello.node] = error.message
            raise
