"""Deliberate faults of the rules that keep damage from spreading to other nodes. See ``faulty``."""

from bedrockish.core import node
from bedrockish.core.coordinator import coordinator
from bedrockish.core.recovery import recovery
from bedrockish.core.replica import voter
from bedrockish.core.state import roster
from tools.editing import Fault, fault
from tools.sim import database, operator

_FLIPS = {
    **{"voters": 3, "flip_every_s": 0.03, "alter": 0.0, "hot": 0.5, "keys": 3, "clients": 6, "think_ms": 5.0},
    **{"faults": (), "suspect_every_s": 0.0, "load_s": 2.0, "timeout_s": 2.0, "delay_ms": 1.0, "sync_ms": 0.5},
}
_ORPHANS = {
    **{**_FLIPS, "delay_ms": 5.0, "faults": ("crash_some", "one_way", "reset"), "fault_every_s": 0.05, "dead": 1},
    **{"suspect_every_s": 0.005, "suspicion_ms": 50, "heartbeat_ms": 20},
}
DAMAGES: dict[str, Fault] = {
    "voters do not compare rows": fault(
        "a voter approves a transaction only if its before-images equal the voter's rows",
        (voter.Voting, "_is_made_of_our_rows", "self.state.why_rows_differ(transaction)", "''"),
        **_FLIPS,
    ),
    "rows are not compared for a recovery": fault(
        "a voter compares rows before it holds a transaction for a recovery",
        (recovery.Recovery, "_stand", 'if state.why_rows_differ(transaction) != "":', "if False:"),
        **_ORPHANS,
    ),
    "rows are not compared when they are applied": fault(
        "a row is changed only if it equals the commit's before-image",
        (database, "apply", "if rows.get(key, NOTHING) != tuple(before):", "if False:"),
        **_FLIPS,
    ),
    "a damaged node votes": fault(
        "a node with damaged tables does not vote",
        (roster.Roster, "is_voter", " or not self.health.writes", ""),
        (node.Node, "_receive", "state.health.applies or isinstance(message, HEARD_WHEN_DAMAGED)", "True"),
        **_FLIPS,
    ),
    "a damaged node answers": fault(
        "a node with damaged tables answers no client from them",
        (coordinator.Coordinator, "submit", "if state.trouble:", "if state.roster.barred:"),
        **_FLIPS,
    ),
    "a copy is not proven": fault(
        "a node serves from a copy only if a replay of its journal gives the same tables",
        (operator.Operator, "_join", "elif not image.flipped:", "elif True:"),
        **{**_FLIPS, "changes_every_s": 0.05, "load_s": 4.0, "scrub_s": 20.0, "flip_every_s": 0.1, "heartbeat_ms": 50}
        | {"faults": ("wipe",), "fault_every_s": 0.5},
    ),
}
