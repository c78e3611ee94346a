"""A node's part in changing the membership: what it knows of the members, the change made into a transaction, and the
links as the membership wants them.

The rules are in ``core.membership``; here they are told the facts.
"""

import logging
from collections.abc import Mapping

import cbor2
import trio

from bedrockish.acquaintances import Acquaintances
from bedrockish.addresses import parse_address
from bedrockish.core.events import Now
from bedrockish.core.membership import Facts, change_members
from bedrockish.core.node import Node
from bedrockish.core.records import Membership, Prepared, encode_membership
from bedrockish.engine.engine import Engine
from bedrockish.requests import MemberChange, Result, encode_results
from bedrockish.starts import STARTS, add_start, read_starts
from journal.footprint import Footprint
from journal.transaction import MEMBERS
from net.errors import RefusedError
from net.events import Hello
from net.mesh import Mesh

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0  # how long a link to a node that left is kept, so that it hears of that
SILENT_MS_MIN = 2_000  # a member that was heard of since then counts as alive, whatever the suspicion time is


def addresses(membership: Membership) -> dict[str, tuple[str, int]]:
    """Return where each member listens."""
    found = {}
    for node, member in membership.members.items():
        address = parse_address(member.address, where=f"member {node}", any_port=True)
        found[node] = (address.host, address.port)
    return found


def set_members(mesh: Mesh, core: Node, known: Acquaintances, nursery: trio.Nursery) -> None:
    """Keep links to the members there are now; those who left get a moment to hear that they did."""
    now, before = addresses(core.state.links()), mesh.peers
    known.forget(core.state.links())
    logger.info("members: %s", ", ".join(f"{node} at {host}:{port}" for node, (host, port) in sorted(now.items())))
    mesh.set_peers({**before, **now})
    if before.keys() - now.keys():
        nursery.start_soon(_part, mesh, core)


async def _part(mesh: Mesh, core: Node) -> None:
    await trio.sleep(FAREWELL_S)
    mesh.set_peers(addresses(core.state.links()))


def judge(core: Node, known: Acquaintances, hello: Hello) -> None:
    """Look at a peer that comes, and turn it away if it is a voter that has forgotten what it promised.

    Raises:
        RefusedError: it has.
    """
    refusal = known.judge(hello.node, hello.info, core.state.membership)
    if refusal is not None:
        raise RefusedError(refusal.code, refusal.reason)


def begin_on_file(engine: Engine, start: bytes) -> dict[str, object]:
    """Note durably that a process begins on this file; return what is told of the file when a link is opened.

    Args:
        engine: has the file.
        start: a random id.
    """
    starts = add_start(engine.get_meta(STARTS).get(STARTS), start, engine.batches)
    engine.set_meta(STARTS, starts)
    engine.flush()
    engine.sync()  # also what a killed process wrote
    store = engine.get_meta("store")["store"]
    return {"store": store, "batches": engine.batches, STARTS: read_starts(cbor2.loads(starts))}


def facts(core: Node, stores: Mapping[str, str], now: Now) -> Facts:
    """Return what this node knows of the members at the moment."""
    state = core.state
    patience = max(SILENT_MS_MIN, 2 * state.settings.suspicion_ms) / 1000
    alive = {node for node, peer in state.peers.items() if peer.up and now.seconds - peer.heard < patience}
    behind = {
        node: sum(max(0, tick - peer.applied.get(leader, 0)) for leader, tick in state.applied.items())
        for node, peer in state.peers.items()
        if peer.applied or not state.applied
    }
    return Facts(frozenset({*alive, state.me}), behind, frozenset(state.applied), {**stores, state.me: state.store})


def prepare_change(core: Node, engine: Engine, change: MemberChange, stores: Mapping[str, str], now: Now) -> Prepared:
    """Return the transaction that makes a change of the members, as of what is applied now.

    Args:
        core: knows the members.
        engine: knows what is applied.
        change: what is asked for.
        stores: ids of the other members' files, as far as they are known.
        now: the clocks.

    Raises:
        MembershipError: it is refused.
    """
    membership = change_members(core.state.membership, change, facts(core, stores, now))
    return Prepared(
        base=dict(engine.applied),
        schema=engine.schema_version,
        readonly=False,
        kind=MEMBERS,
        footprint=Footprint(),  # the core adds that it conflicts with everything
        changes=encode_membership(membership),
        result=encode_results([members_table(membership)]),
    )


def members_table(membership: Membership) -> Result:
    """Return a membership as the rows that a client is answered."""
    rows = [
        (member.node, member.address, "voter" if member.voter else "learner", member.store)
        for member in membership.members.values()
    ]
    return Result(("node", "address", "role", "store"), rows)
