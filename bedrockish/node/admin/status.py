"""A node's report about itself: plain data, for ``bedrockish status`` and for metrics."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bedrockish import __version__
from bedrockish.config.config import Config
from bedrockish.core.coordinator.request import readable
from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Mode
from bedrockish.core.state.conflict_records import conflict_counts, other_counts
from bedrockish.core.state.roster import Peer
from bedrockish.core.state.state import State
from bedrockish.engine.storage.scratch_files import room_on_disk
from bedrockish.node.admin.troubles import SILENT_MS_MAX
from bedrockish.node.admin.wal_readers import describe_held_wal
from bedrockish.node.admin.watching import open_files
from bedrockish_journal.model.levels import LEVEL

if TYPE_CHECKING:
    from bedrockish.engine.engine import Engine
    from bedrockish_net.mesh import Mesh

# The mode of a node whose file cannot be written, and the text with which its refusals begin.
WAITING, IT_WAITS = "waiting", "it waits: "
AWAY = "away"  # the mode of a silent member
IN_DOUBT_MAX = 50
CONFLICTS_MAX = 100  # the most tables and indexes in a status, those with most conflicts first


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
    up, unreachable = (mesh.up, mesh.unreachable) if mesh is not None else (frozenset[str](), dict[str, str]())
    nodes = {name: _member(state, name, up, unreachable, refused, now) for name in state.roster.membership.members}
    return {
        "node": state.me,
        "memory": engine.memory.describe(),
        "disk": room_on_disk(config.database),
        "files": open_files(),
        "cluster": config.cluster,
        "cluster_id": state.roster.membership.cluster_id or None,
        "version": __version__,
        "level": LEVEL,
        "cluster_level": state.roster.membership.level,
        "store": state.store,
        "database": config.database,
        "uptime_ms": round(now.wall_ms - 1000 * started),
        "mode": state.health.mode.label,
        "alarms": {
            name: {"mode": alarm.mode.label, "reason": alarm.reason, **alarm.details}
            for name, alarm in state.health.alarms.items()
        },
        "blocked": [str(txid) for txid in sorted(state.blocked)],
        "journal_damaged": dict(engine.damaged),
        "trouble": state.trouble or None,
        "membership_version": state.roster.membership.version,
        "quorum": state.roster.quorum,
        "applied": dict(state.timelines.applied),
        "schema_version": engine.schema_version,
        "clock": state.clock.value,
        "safe": state.clock.safe,
        "clock_leap_ms": state.clock.leap_ms,
        "safe_lag_ms": state.clock.age_ms(state.clock.safe, now),
        "nodes": nodes,
        "in_flight": len(core.coordinator.attempts.open),
        "requests": len(core.coordinator.replies.in_flight),
        "in_doubt": in_doubt(core, now),
        "recoveries": dict(core.recovery.counts),
        "wal_frames": engine.wal.frames,
        "wal_held": describe_held_wal(config.database, engine.wal.held_frames),
        "kept": _kept(core),
        "counts": {**counts, **other_counts(state.counts)},
        "conflicts": _conflicts(state),
    }


def _member(
    state: State, name: str, up: Collection[str], unreachable: Mapping[str, str], refused: Mapping[str, str], now: Now
) -> dict[str, Any]:
    """Return a member as this node knows it."""
    member, peer = state.roster.membership.members[name], state.roster.peers.get(name)
    found: dict[str, Any] = {"address": member.address, "role": "voter" if member.voter else "learner"}
    if peer is None:  # this node
        found |= {"store": state.store, "up": True, "mode": state.health.mode.label, "unreachable": None}
        found |= {"trouble": None, "applied": dict(state.timelines.applied), "level": LEVEL}
        return found | {"wall_offset_ms": 0, "report_lag_ms": None, "silent_ms": 0}
    why, silent_ms = refused.get(name, ""), round(1000 * (now.seconds - peer.heard))
    is_up = name in up and name not in refused
    mode = peer.mode.label if is_up and silent_ms < SILENT_MS_MAX else AWAY  # a silent member's report may be outdated
    return found | {
        "store": member.store,
        "up": is_up,
        "mode": WAITING if why.startswith(IT_WAITS) else mode,
        "unreachable": unreachable.get(name),
        "trouble": why or _clock_trouble(state, peer) or _mode_trouble(name, peer),
        "applied": dict(peer.applied),
        "level": peer.level or None,
        "wall_offset_ms": _wall_offset_ms(state, peer),
        "report_lag_ms": _report_lag_ms(state, peer, now) if member.voter else None,
        "silent_ms": silent_ms,
    }


def _kept(core: Node) -> dict[str, int]:
    """Return the numbers of votes, commits and other records that the core holds."""
    state = core.state
    return {
        "votes": len(state.votes.by_txid),
        "outcomes": len(state.votes.outcomes),
        "recent": len(state.commit_window.known),
        "waiting": sum(len(queue) for queue in core.apply_queue.waiting.values()),
    }


def _conflicts(state: State) -> list[dict[str, Any]]:
    """Return the counts of this node's conflicts, by table or index, and by ``key``, ``range`` or ``whole``."""
    met = islice(conflict_counts(state.counts), CONFLICTS_MAX)
    return [{"object": readable(one.object), "exact": one.exact, "times": one.times} for one in met]


def _wall_offset_ms(state: State, peer: Peer) -> int | None:
    """Return the milliseconds by which a peer's wall clock is ahead of ours; None if not reported."""
    if peer.wall_ahead_ms is None:
        return None
    return round(peer.wall_ahead_ms + state.clock.now.seconds * 1000 - state.clock.wall_ms)


def _report_lag_ms(state: State, peer: Peer, now: Now) -> int | None:
    """Return how late a voter's closed time arrives here, in ms beyond the closing lag; None if it closes nothing.

    A voter sends its closed time only when everything before it is durable there, so a slow disk, processor or link
    shows here.
    """
    closed = max(peer.closed, peer.report[1] if peer.report is not None else 0)
    age_ms = state.clock.age_ms(closed, now)
    return None if age_ms is None else max(0, age_ms - state.settings.closing_lag_ms)


def _clock_trouble(state: State, peer: Peer) -> str | None:
    """Return the trouble of a peer whose clock is further ahead than this node follows; None for another peer."""
    if not peer.ahead_ms:
        return None
    return (
        f"its clock is {peer.ahead_ms} ms ahead of most voters' clocks, which is more than clock_offset_ms "
        f"({state.settings.clock_offset_ms}): its transactions are refused here; set the machine's clock"
    )


def _mode_trouble(name: str, peer: Peer) -> str | None:
    """Return the trouble of a peer that reports another mode than serving; None for other peers."""
    if peer.mode is Mode.SERVING:
        return None
    return f"it is {peer.mode.label}; its own status says why: bedrockish status with the URL of {name} alone"


def in_doubt(core: Node, now: Now) -> list[dict[str, Any]]:
    """Return the pending transactions, oldest first, with the nodes that decide them."""
    state = core.state
    found = []
    for txid, transaction in state.votes.pending.transactions.items():
        round_ = core.recovery.rounds.get(txid)
        found.append(
            {
                "txid": str(txid),
                "leader": txid.leader,
                "age_ms": round(1000 * (now.seconds - state.votes.pending.since[txid])),
                "commands": len(transaction.commands),
                "recovered_by": state.me if round_ is not None else None,
                "promised": state.votes.by_txid[txid].promised,
            }
        )
    found.sort(key=lambda one: -int(str(one["age_ms"])))
    return found[:IN_DOUBT_MAX]
