"""Reads of virtual tables in bytecode: the whole of each virtual table, as its module does not say where it goes.

A table that owns its rows is read as itself. An index is read as its content table: each change of a row there may
change what a search finds, and the search also reads the row. Bytecode does not name the table of a VOpen; the
authorizer names all tables that the statement reads, updates or deletes from, and all of these count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bedrockish.access_sets.opcodes import Op
from bedrockish.access_sets.virtual_layout import VirtualLayout

VIRTUAL = "virtual table"
_FAIL, _IGNORE = 3, 4  # conflict clauses, as P5 of VUpdate has them


@dataclass(frozen=True, slots=True)
class VirtualReads:
    """The key spaces that a program reads through virtual tables.

    Attributes:
        objects: key spaces that it reads as a whole.
        probes: those that it looks into for a constraint; they count if the statement fails.
    """

    objects: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()


def virtual_reads(program: Sequence[Op], layout: VirtualLayout, named: Iterable[str]) -> VirtualReads:
    """Return the reads of virtual tables by a program.

    Args:
        program: its instructions.
        layout: the virtual tables of the schema.
        named: tables that the statement reads, updates or deletes from; and, as ``-NAME``, that it inserts into.
    """
    opens = any(op.name == "VOpen" for op in program)
    updates = [op.p5 for op in program if op.name == "VUpdate"]
    if not opens and not updates:
        return VirtualReads()
    read, written = set[str](), set[str]()
    for name in named:
        for found in layout.objects_of(name.removeprefix("-")):
            (written if name.startswith("-") else read).add(found)
    # A row that is there decides whether an INSERT OR IGNORE happens.
    skips = any(clause in (_FAIL, _IGNORE) for clause in updates)
    objects = (read if opens else set()) | (read | written if skips else set())
    return VirtualReads(tuple(sorted(objects)), tuple(sorted(read | written)) if updates else ())
