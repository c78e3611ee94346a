"""Finds the probes of a program, its lookups of keys, that only enforce constraints.

A changed row implies the results of these probes: that its UNIQUE values were free and that its foreign keys had
parents. The keys of changed rows (``writeset``) state this exactly, while the bytecode often shows only that some key
was looked up. So such probes count as reads only if the statement failed, because its changes are then discarded.

Only the exact sequences that SQLite generates are recognised here; any other sequence stays an ordinary read.
"""

from bedrockish.access_sets.effort import Check, unlimited
from bedrockish.access_sets.opcodes import CHANGES, FOREIGN_KEY_HALT, OPENS, POSITIONS, STEPS, UNIQUE_HALTS, Op

_SELF_TESTS = frozenset({"IdxRowid", "Eq", "Rowid", "Column"})  # they test whether the found row is the updated row


def constraint_probes(program: list[Op], check: Check = unlimited, *, main: bool) -> set[int]:
    """Return the addresses of all positioning instructions that only enforce a constraint.

    ``main``: whether this is the statement's own program, and not that of a trigger or a foreign-key action.
    """
    writes = {op.p1 for op in program if op.name == "OpenWrite"}
    found: set[int] = set()
    if not main and _is_foreign_key_action(program):
        return {op.address for op in program if op.name in POSITIONS}
    for op in program:
        if op.name == "FkCounter":
            check()
            found |= _child_scan(program, op.address)
            continue
        unique = op.name in ("NoConflict", "NotExists") and op.p1 in writes
        parent = op.name in ("Found", "NotExists")
        if (unique and _ends_in_unique_halt(program, op.address)) or (
            parent and _is_parent_lookup(program, op.address)
        ):
            found.add(op.address)
    return found


def _ends_in_unique_halt(program: list[Op], address: int) -> bool:
    """Return whether a probe that finds a row can only lead to a UNIQUE error."""
    for op in program[address + 1 : address + 4]:
        if op.name == "Halt":
            return op.p1 in UNIQUE_HALTS
        if op.name not in _SELF_TESTS:
            return False
    return False


def _is_parent_lookup(program: list[Op], address: int) -> bool:
    """Return whether this is a lookup in the parent's index (``Found``) or table (``NotExists``) for a foreign key."""
    following = program[address + 1 : address + 3]
    if program[address].name == "NotExists":
        if len(following) < 2 or following[0].name != "Goto" or program[address].p2 != address + 2:
            return False
        following = following[1:]
    return bool(following) and (
        following[0].name == "FkCounter" or (following[0].name == "Halt" and following[0].p1 == FOREIGN_KEY_HALT)
    )


def _child_scan(program: list[Op], counter: int) -> set[int]:
    """Return the addresses of the seeks of a loop that only counts a parent's children; empty for any other loop."""
    end = next((op for op in program[counter:] if op.name in STEPS and op.p2 <= counter), None)
    if end is None or any(op.name in CHANGES for op in program[end.p2 : end.address]):
        return set()
    start = end.p2
    while start > 0 and not (program[start].name in OPENS and program[start].p1 == end.p1):
        start -= 1
    while start > 0 and program[start - 1].name in OPENS:
        start -= 1
    inside = program[start : end.address + 1]
    cursors = {op.p1 for op in inside if op.name in OPENS}
    if any(op.name in CHANGES for op in inside) or not cursors:
        return set()
    return {op.address for op in inside if op.name in POSITIONS and op.p1 in cursors}


def _is_foreign_key_action(program: list[Op]) -> bool:
    """Return whether a program is a foreign-key action such as CASCADE: unlike a trigger's program, it has no name."""
    return bool(program) and program[0].name == "Init" and program[0].p4 is None and program[-1].name == "Halt"
