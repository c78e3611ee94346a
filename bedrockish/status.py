"""What a node says about itself: plain data for ``bedrockish status``, for metrics and for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bedrockish import __version__
from bedrockish.clock import milliseconds
from bedrockish.config import Config
from bedrockish.core.events import Now
from bedrockish.core.node import Node
from bedrockish.core.state import State

if TYPE_CHECKING:
    from bedrockish.engine.engine import Engine
    from net.mesh import Mesh

IN_DOUBT_MAX = 50


def describe_node(
    core: Node,
    engine: "Engine",
    config: Config,
    counts: Mapping[str, int],
    mesh: "Mesh | None",
    refused: Mapping[str, str],
    now: Now,
    started: float,
) -> dict[str, Any]:
    """Return the status of a node as a map of plain values.

    Durations are milliseconds, clocks are hybrid clock values, ages are measured on this node.
    """
    state = core.state
    up = mesh.up if mesh is not None else frozenset()
    nodes = {}
    for name, member in state.membership.members.items():
        peer = state.peers.get(name)
        away = name in refused
        nodes[name] = {
            "address": member.address,
            "role": "voter" if member.voter else "learner",
            "store": state.store if peer is None else member.store,
            "up": name == state.me or (name in up and not away),
            "trouble": refused.get(name) or clock_trouble(state, name),
            "applied": dict(state.applied if peer is None else peer.applied),
            "wall_offset_ms": _wall_offset_ms(state, name),
            "silent_ms": 0 if peer is None else round(1000 * (now.seconds - peer.heard)),
        }
    return {
        "node": state.me,
        "cluster": config.cluster,
        "version": __version__,
        "store": state.store,
        "database": config.database,
        "uptime_ms": round(now.wall_ms - 1000 * started),
        "trouble": state.trouble or None,
        "membership_version": state.membership.version,
        "quorum": state.quorum,
        "applied": dict(state.applied),
        "schema_version": engine.schema_version,
        "clock": state.clock.value,
        "safe": state.safe,
        "safe_lag_ms": max(0, now.wall_ms - milliseconds(state.safe)) if state.safe else None,
        "nodes": nodes,
        "in_flight": len(core.leading.attempts),
        "tickets": len(core.leading.tickets),
        "in_doubt": in_doubt(core, now),
        "recoveries": dict(core.recovery.counts),
        "wal_frames": engine.wal_frames,
        "kept": {
            "votes": len(state.votes),
            "outcomes": len(state.outcomes),
            "recent": len(state.recent.known),
            "waiting": sum(len(queue) for queue in core.ordering.waiting.values()),
        },
        "counts": {**counts, **state.counts},
    }


def _wall_offset_ms(state: State, name: str) -> int | None:
    """Return how far a peer's wall clock is ahead of ours, in milliseconds; None if it has not told."""
    peer = state.peers.get(name)
    if peer is None or peer.wall_ahead_ms is None:
        return None if name != state.me else 0
    return round(peer.wall_ahead_ms + state.now.seconds * 1000 - state.wall_ms)


def clock_trouble(state: State, name: str) -> str | None:
    """Return what to say of a peer whose clock is further ahead than we follow; None if it is not."""
    peer = state.peers.get(name)
    if peer is None or not peer.ahead_ms:
        return None
    return (
        f"its clock is {peer.ahead_ms} ms ahead of what most voters' clocks say, which is more than clock_offset_ms "
        f"({state.settings.clock_offset_ms}): its transactions are refused here; set the machine's clock"
    )


def in_doubt(core: Node, now: Now) -> list[dict[str, Any]]:
    """Return the transactions whose outcome this node does not know: oldest first, with who is finishing them."""
    state = core.state
    found = []
    for txid, transaction in state.pending.transactions.items():
        round_ = core.recovery.rounds.get(txid)
        found.append(
            {
                "txid": str(txid),
                "leader": txid.leader,
                "age_ms": round(1000 * (now.seconds - state.pending.since[txid])),
                "command": transaction.command,
                "joined": list(transaction.commands[1:]),
                "recovered_by": state.me if round_ is not None else None,
                "promised": state.votes[txid].promised,
            }
        )
    found.sort(key=lambda one: -int(str(one["age_ms"])))
    return found[:IN_DOUBT_MAX]
