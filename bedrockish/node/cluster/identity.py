"""The identity of a node's cluster: checked whenever two nodes connect, and requested before a node's file is made.

Names do not identify a cluster: two clusters may both be called bedrockish and have nodes A, B and C, and one wrong
address would mix them. So a cluster has a random id, which the first of its members in name order makes at the
founding. The membership keeps the id, and every HELLO has it. A peer with another id changes nothing here: it is not
remembered, its votes are not counted, and its statements about our file are not believed.
"""

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import trio

from bedrockish.api.url import Address
from bedrockish.api.wire import CANCELS, CLUSTER_ID
from bedrockish.client.credentials import ClientCredentials
from bedrockish.config.config import Config
from bedrockish.errors import ConfigError
from bedrockish.node.cluster.incarnations import Refusal
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Membership
from bedrockish_net.errors import Code, NetError, RemoteProtocolError
from bedrockish_net.events import Hello
from bedrockish_net.limits import LinkLimits

logger = logging.getLogger(__name__)

ID, LEVEL_KEY, CLUSTER_LEVEL, ASKS = CLUSTER_ID, "level", "cluster_level", "asks"  # keys of a HELLO's info
MEMBERS = "members"  # key of the members' names in a HELLO's info
OLDER_RELEASE = "older_release"  # the code with which a node of a too low release level is refused
ASK_S = 2.0  # how long one member may take to answer
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0  # pause between two rounds of questions to the members
SAY_S = 10.0  # seconds between two lines in the log while no member answers
QUIET_S = 3.0  # seconds before the first of these lines: nodes that start together need some time to connect


def judge_identity(hello: Hello, membership: Membership) -> Refusal | None:
    """Return the refusal of a peer of another cluster or an unfit release; None for other peers.

    Args:
        hello: the peer's HELLO, as dialler or as accepter.
    """
    node, ours = hello.node, membership.cluster_id
    theirs, level, store = hello.info.get(ID, ""), hello.info.get(LEVEL_KEY, 1), hello.info.get("store")
    if not isinstance(theirs, str) or type(level) is not int:
        return Refusal(Code.MALFORMED, f"HELLO of {node} has a malformed cluster id or level")
    if not isinstance(store, str) or type(hello.info.get("batches")) is not int:
        return Refusal(Code.MALFORMED, f"HELLO of {node} lacks the id of its file or its number of batches")
    if level < membership.level:
        return Refusal(
            OLDER_RELEASE,
            f"{node} runs a program of release level {level}, and the members of this cluster speak at level "
            f"{membership.level}; install their release on {node}, and start it again on its file",
        )
    if theirs == ours:
        return None
    return Refusal(
        Code.CLUSTER,
        f"{node} is of another cluster of the same name (its id is {theirs}, ours is {ours}); put its "
        f"address right with 'bedrockish member address URL {node} HOST:PORT', or, if {node} has lost its file, give "
        f"its place to a new node with 'bedrockish member replace URL {node} NEW'",
    )


def only_asks(hello: Hello) -> bool:
    """Return whether a client only asks for the cluster's id; it gets our HELLO and no more."""
    return hello.role == "client" and ASKS in hello.info


def info_for_clients(info: Mapping[str, Any], asks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in a node's HELLO for clients: its cluster, that it stops cancelled calls, and, if asked for,
    the facts that a new member needs.

    The ids of files and processes, the commands and the release are for peers, which have proven their names.
    """
    told = (ID, CLUSTER_LEVEL, MEMBERS) if ASKS in asks else (ID,)
    return {CANCELS: True} | {key: info[key] for key in told if key in info}


async def find_cluster(config: Config, entry: ClientCredentials) -> tuple[str, int]:
    """Return the id and the release level of the cluster, for a node that has to make its file.

    Running members know the id. If none answers, the first member in name order founds the cluster, and the other
    members wait for it; otherwise each of them would found a cluster of its own.

    Args:
        entry: this node's credentials for links to the other members.

    Raises:
        ConfigError: the cluster is at a higher release level than this program, or has other members.
    """
    others = {node: address for node, address in config.peers.items() if node != config.node}
    founder, pause, says_at = min(config.peers), PAUSE_S_MIN, trio.current_time() + QUIET_S
    while True:
        why_not = []
        for node, address in others.items():
            try:
                return await _ask(config, entry, node, address)
            except NetError as error:
                why_not.append(str(error))
        if founder == config.node:
            return secrets.token_hex(8), LEVEL
        if trio.current_time() >= says_at:
            says_at = trio.current_time() + SAY_S
            logger.warning(
                "a new cluster gets its id from %s, at %s; waiting for it, or for another member that has a file: %s",
                founder,
                config.peers[founder],
                "; ".join(why_not),
            )
        await trio.sleep(pause)
        pause = min(2 * pause, PAUSE_S_MAX)


async def _ask(config: Config, entry: ClientCredentials, node: str, address: Address) -> tuple[str, int]:
    hello = Hello(config.node, config.cluster, "client", node, {ASKS: ID})
    link = await entry.dial(address, hello, ASK_S, LinkLimits())
    info = link.remote.info
    await link.aclose()
    found, level = info.get(ID, ""), info.get(CLUSTER_LEVEL, 1)
    if not isinstance(found, str) or type(level) is not int:
        raise RemoteProtocolError(Code.MALFORMED, f"{node} at {address} reports a malformed id or level")
    if level > LEVEL:
        raise ConfigError(
            f"the cluster runs at release level {level}, and this program reads up to {LEVEL}; install "
            "their release here"
        )
    names = info.get(MEMBERS)
    if isinstance(names, list) and config.node not in names:
        raise ConfigError(
            f"{config.node} is not a member of the cluster at {address}, which has {', '.join(map(str, names))}; let "
            "it in with 'bedrockish join URL --config FILE --voter' instead of founding another cluster"
        )
    return found, level
