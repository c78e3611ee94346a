"""A node's part in changing the membership: it collects the facts about members, makes a change into a transaction, and
keeps links to the present members.

The rules are in ``core.state.membership``; this module collects the facts for them.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import cbor2
import trio

from bedrockish.api.requests import (
    ADDRESS,
    DEMOTE,
    PROMOTE,
    RAISE,
    REMOVE,
    REPLACE,
    USER_ACTIONS,
    Answer,
    MemberChange,
    Request,
    Result,
    encode_results,
)
from bedrockish.api.url import parse_address
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Mode
from bedrockish.core.protocol.records import Prepared
from bedrockish.core.state.membership import MembershipFacts, change_members
from bedrockish.engine.engine import Engine
from bedrockish.engine.statements.users_vtab import write_tables
from bedrockish.errors import BedrockishError
from bedrockish.node.cluster.identity import ID, judge_identity
from bedrockish.node.cluster.incarnations import Incarnations
from bedrockish.node.cluster.starts import STARTS, add_start, read_starts
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import ROLES, Membership, pack_membership
from bedrockish_journal.model.transaction import MEMBERS
from bedrockish_net.errors import RefusedError
from bedrockish_net.events import Hello
from bedrockish_net.mesh import Mesh

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0  # how long a link to a removed node is kept, so that the node gets the entry of its removal
LEVEL_S = 1.0  # seconds between two checks whether the release level can be raised
LEVEL_TIMEOUT_S = 10.0
SILENT_MS_MIN = 2_000  # a member counts as alive at least this long after its last message, whatever suspicion_ms is
ON_THE_WAY_S = 0.1  # a message that arrives within this time of an order may have been sent before the order
HEAR_S = 0.02  # seconds between two checks whether a member has sent a message since an order arrived


def addresses(membership: Membership) -> dict[str, tuple[str, int]]:
    """Return the address at which each member listens."""
    found = {}
    for node, member in membership.members.items():
        address = parse_address(member.address, where=f"member {node}", any_port=True)
        found[node] = (address.host, address.port)
    return found


def set_members(mesh: Mesh, core: Node, known: Incarnations, nursery: trio.Nursery) -> None:
    """Keep links to the present members; links to former members stay a moment, to send them the change."""
    now, before = addresses(core.state.roster.links()), mesh.peers
    known.forget(core.state.roster.links())
    logger.info("members: %s", ", ".join(f"{node} at {host}:{port}" for node, (host, port) in sorted(now.items())))
    mesh.set_peers({**before, **now})
    if before.keys() - now.keys():
        nursery.start_soon(_drop_former, mesh, core)


async def _drop_former(mesh: Mesh, core: Node) -> None:
    await trio.sleep(FAREWELL_S)
    mesh.set_peers(addresses(core.state.roster.links()))


def recognise(core: Node, hello: Hello) -> None:
    """Check the cluster and the release of a peer that connects, or that answers us.

    Raises:
        RefusedError: the peer is of another cluster, or of a release that cannot take part in this cluster.
    """
    refusal = judge_identity(hello, core.state.roster.links())
    if refusal is not None:
        raise RefusedError(refusal.code, refusal.reason)


def judge(core: Node, known: Incarnations, hello: Hello) -> None:
    """Check a peer that connects, and remember its statements about its file.

    Raises:
        RefusedError: ``recognise`` or ``Incarnations.judge`` refuses the peer.
    """
    recognise(core, hello)
    membership = core.state.roster.membership
    refusal = known.judge(hello.node, hello.info, membership)
    if refusal is not None:
        raise RefusedError(refusal.code, refusal.reason, {ID: membership.cluster_id, **refusal.info})


def begin_on_file(engine: Engine, start: bytes) -> dict[str, object]:
    """Record durably that a process begins on this file; return the facts about the file for each HELLO.

    Args:
        start: a random id.
    """
    starts = add_start(engine.get_meta(STARTS).get(STARTS), start, engine.batch.number)
    engine.set_meta(STARTS, starts)
    engine.flush()
    engine.sync()  # also makes the writes of a killed process durable
    store = engine.get_meta("store")["store"]
    return {"store": store, "batches": engine.batch.number, STARTS: read_starts(cbor2.loads(starts))}


def facts(core: Node, stores: Mapping[str, str], now: Now) -> MembershipFacts:
    """Return the facts about the members that decide on a change, as far as this node knows them."""
    state = core.state
    alive = _alive(core, now)
    behind = {
        node: sum(max(0, tick - peer.applied.get(leader, 0)) for leader, tick in state.timelines.applied.items())
        for node, peer in state.roster.peers.items()
        if peer.applied or not state.timelines.applied
    }
    return MembershipFacts(
        frozenset({*alive, state.me}),
        behind,
        frozenset(state.timelines.applied),
        {**stores, state.me: state.store},
        {state.me: LEVEL, **{node: peer.level for node, peer in state.roster.peers.items()}},
        state.timelines.whole(),
        frozenset(node for node, peer in state.roster.peers.items() if peer.mode is Mode.READ_ONLY),
    )


def _alive(core: Node, now: Now) -> list[str]:
    """Return the other members that have recently sent messages, and can apply commits."""
    state = core.state
    patience = max(SILENT_MS_MIN, 2 * state.settings.suspicion_ms) / 1000
    up = ((node, peer) for node, peer in state.roster.peers.items() if peer.up and peer.mode < Mode.DAMAGED)
    return [node for node, peer in up if now.seconds - peer.heard < patience]


def depends_on_alive(change: MemberChange) -> bool:
    """Return whether the outcome of a change depends on the members that are alive."""
    return change.action in (ADDRESS, DEMOTE, PROMOTE, REMOVE, REPLACE)


async def wait_for_alive(core: Node, clock: Callable[[], Now]) -> None:
    """Wait until each member has sent a message after the beginning of this call, or counts as dead.

    A running member sends a heartbeat during the call. A member that failed just before the call counts as dead when
    the call returns: then its replacement is accepted, and a change that needs its vote is refused.
    """
    sent = clock().seconds + ON_THE_WAY_S
    peers = core.state.roster.peers
    while any(node in peers and peers[node].heard <= sent for node in _alive(core, clock())):
        await trio.sleep(HEAR_S)
        peers = core.state.roster.peers


async def keep_level(core: Node, submit: Callable[[Request], Awaitable[Answer]]) -> None:
    """Raise the cluster's release level as soon as all members support a higher one, until cancelled.

    The first voter that is up raises the level. A change that fails is retried: a member may be restarting just then.
    """
    state = core.state
    while True:
        await trio.sleep(LEVEL_S)
        up = [node for node in state.roster.voters if node == state.me or state.roster.peers[node].up]
        if state.roster.level_of_all <= state.roster.membership.level or state.trouble or up[0] != state.me:
            continue
        change = MemberChange(RAISE, state.me)
        try:
            await submit(Request(uuid.uuid4().hex, (), timeout_s=LEVEL_TIMEOUT_S, change=change))
        except BedrockishError as error:
            logger.info("the release level is not raised yet: %s", error.message)
        else:
            logger.info("the cluster's release level is %d now", state.roster.membership.level)


def prepare_change(core: Node, engine: Engine, change: MemberChange, stores: Mapping[str, str], now: Now) -> Prepared:
    """Return the transaction that makes a change of the members, based on the applied entries.

    Args:
        stores: ids of the other members' files, as far as they are known.

    Raises:
        MembershipError: the change is refused.
    """
    known = replace(facts(core, stores, now), void=frozenset(map(str, engine.entries.void)))
    membership = change_members(core.state.roster.membership, change, known)
    return Prepared(
        base=dict(engine.applied),
        schema=engine.schema_version,
        readonly=False,
        kind=MEMBERS,
        access_set=AccessSet(),  # empty, because the core lets a change of members conflict with everything
        changes=pack_membership(membership),
        result=encode_results([(users_table if change.action in USER_ACTIONS else members_table)(membership)]),
    )


def users_table(membership: Membership) -> Result:
    """Return the users of a membership as the rows of a client's answer."""
    known = [(name, one) for name, one in sorted(membership.users.items()) if one is not None]
    rows = [(name, ROLES[one.role - 1] if one.role else None, write_tables(one.tables)) for name, one in known]
    return Result(("user_name", "role", "tables"), rows)


def members_table(membership: Membership) -> Result:
    """Return the members of a membership as the rows of a client's answer."""
    members = membership.members.values()
    rows = [(one.node, one.address, "voter" if one.voter else "learner", one.store) for one in members]
    return Result(("node", "address", "role", "store"), rows)
