"""Reads of virtual tables in bytecode: each is a read of the whole table, because its module does not report rows read.

A read of a table that owns its rows counts as a read of that table, and a read of an index as a read of its content
table, because each change of a row there may change the result of a search. Bytecode does not name the table of a
VOpen. The authorizer names all tables that the statement reads, updates or deletes from, so all virtual tables among
them count as read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bedrockish.access_sets.opcodes import Op
from bedrockish.access_sets.virtual_layout import VirtualLayout

VIRTUAL = "virtual table"
_FAIL, _IGNORE = 3, 4  # conflict clauses in P5 of VUpdate


@dataclass(frozen=True, slots=True)
class VirtualReads:
    """The key spaces that a program reads through virtual tables."""

    objects: tuple[str, ...] = ()  # key spaces that the program reads as a whole
    probes: tuple[str, ...] = ()  # key spaces that constraints look up; they count if the statement fails


def virtual_reads(program: Sequence[Op], layout: VirtualLayout, named: Iterable[str]) -> VirtualReads:
    """Return the reads of virtual tables by a program.

    Args:
        named: tables that the statement reads, updates or deletes from; and, as ``-NAME``, tables it inserts into.
    """
    opens = any(op.name == "VOpen" for op in program)
    updates = [op.p5 for op in program if op.name == "VUpdate"]
    if not opens and not updates:
        return VirtualReads()
    read, written = set[str](), set[str]()
    for name in named:
        for found in layout.objects_of(name.removeprefix("-")):
            (written if name.startswith("-") else read).add(found)
    # Whether an INSERT OR IGNORE inserts depends on existing rows.
    skips = any(clause in (_FAIL, _IGNORE) for clause in updates)
    objects = (read if opens else set()) | (read | written if skips else set())
    return VirtualReads(tuple(sorted(objects)), tuple(sorted(read | written)) if updates else ())
