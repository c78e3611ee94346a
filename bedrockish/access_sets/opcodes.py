"""The effects of SQLite's opcodes that matter for the analysis of reads.

The analysis assumes that an opcode that this file does not name may have any effect. An opcode in this file moves no
cursor on a table (unless it is in ``POSITIONS`` or ``WHOLE``), and writes only the named registers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw


class Op(NamedTuple):
    """An instruction as EXPLAIN prints it."""

    address: int
    name: str
    p1: int
    p2: int
    p3: int
    p4: str | None
    p5: int


def rows_of(cursor: apsw.Cursor) -> Iterator[tuple[Any, ...] | None]:
    """Yield the rows of an EXPLAIN, which prints blobs as text; None for a row whose blob is not valid text."""
    while True:
        try:
            row = next(cursor, ())
        except UnicodeDecodeError:
            row = None
        if row == ():
            return
        yield row


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENS = frozenset({"OpenRead", "OpenWrite", "ReopenIdx"})
OPENS_PRIVATE = frozenset({"OpenEphemeral", "OpenAutoindex", "SorterOpen", "OpenPseudo", "OpenDup"})
"""Opcodes that open a cursor on rows that only this statement can see."""

EXACT = frozenset({"SeekRowid", "NotExists", "Found", "NotFound", "NoConflict"})
BY_ROWID = frozenset({"SeekRowid", "NotExists"})
SEEKS = frozenset({"SeekLT", "SeekLE", "SeekGE", "SeekGT"})
POSITIONS = EXACT | SEEKS | {"Rewind", "Last"}
"""Opcodes that move a cursor to a row that depends on the table's content."""

WHOLE = frozenset({"Count", "IfEmpty", "IfSizeBetween"})
"""Opcodes whose result depends on the whole table."""

STEPS = frozenset({"Next", "Prev"})
INDEX_STOPS = frozenset({"IdxLE", "IdxGT", "IdxLT", "IdxGE"})
COMPARISONS = frozenset({"Eq", "Ne", "Lt", "Le", "Gt", "Ge"})
VIRTUAL = frozenset({"VOpen", "VFilter", "VColumn", "VNext", "VInitIn"})
VIRTUAL_CHANGES = frozenset({"VBegin", "VUpdate"})
"""Opcodes that change a virtual table."""

LOADS = _names(
    """Integer Int64 Real String8 Null Variable SCopy Copy IntCopy Affinity IsNull NotNull Explain CursorHint SeekHit
    Noop ReleaseReg CollSeq SeekScan MustBeInt"""
)
"""Opcodes that may come between a seek and the check that ends its loop, because they move no cursor."""

CHANGES = _names("Insert Delete IdxInsert IdxDelete ResultRow Program Clear VBegin VUpdate")
"""Opcodes with an effect outside the program's registers, other than counting violated foreign keys."""

_WRITES_P1 = """Gosub InitCoroutine Yield EndCoroutine AddImm Cast CollSeq MemMax IfPos IfNotZero DecrJumpZero AggFinal
    ClrSubtype FilterAdd"""
_WRITES_P2 = """Blob String IsTrue Not BitNot ZeroOrNull Count ReadCookie Sequence SorterData RowData Destroy
    CreateBtree Param OffsetLimit VCheck VInitIn Pagecount MaxPgcnt GetSubtype SetSubtype RowCell NewRowid Rowid
    IdxRowid"""
_WRITES_P3 = """Concat Add Subtract Multiply Divide Remainder BitAnd BitOr ShiftLeft ShiftRight And Or IfNullRow Offset
    Column MakeRecord OpenEphemeral Program AggInverse AggStep AggStep1 AggValue VColumn PureFunc Function NewRowid
    Clear"""

WRITES: dict[str, tuple[str, ...]] = {}
"""Opcode -> its operands that name a register to which it writes an unknown value."""
for _operand, _text in (("p1", _WRITES_P1), ("p2", _WRITES_P2), ("p3", _WRITES_P3)):
    for _name in sorted(_names(_text)):
        WRITES[_name] = (*WRITES.get(_name, ()), _operand)

TRACKED = _names(
    """Integer Int64 Real String8 Variable Null SoftNull BeginSubrtn SCopy IntCopy Copy Move Affinity MustBeInt
    RealAffinity RowSetAdd RowSetRead RowSetTest TypeCheck"""
)
"""Opcodes that move values between registers, which ``register_values.py`` computes."""

_NEUTRAL = _names(
    """Init Goto Halt HaltIfNull Transaction ResultRow Noop Explain Return ElseEq Compare Permutation Jump Once If
    IfNot IsNull IsType NotNull Savepoint SequenceTest SeekScan SeekHit SeekEnd IfNotOpen IfNoHope Insert Delete
    ResetCount SorterCompare NullRow SorterSort Sort SorterNext IdxInsert SorterInsert IdxDelete DeferredSeek
    FinishSeek ResetSorter FkCounter FkIfZero FkCheck Expire CursorLock TableLock Filter Trace CursorHint Abortable
    ReleaseReg Close ColumnsUsed"""
)

KNOWN = (
    OPENS
    | OPENS_PRIVATE
    | POSITIONS
    | WHOLE
    | STEPS
    | INDEX_STOPS
    | COMPARISONS
    | TRACKED
    | _NEUTRAL
    | frozenset(WRITES)
    | VIRTUAL
    | VIRTUAL_CHANGES
)

_NO_JUMPS = _names(
    """Integer Int64 Real String8 String Blob Variable Null SoftNull SCopy IntCopy Copy Move Affinity RealAffinity
    Column Rowid IdxRowid NewRowid MakeRecord OpenRead OpenWrite ReopenIdx OpenEphemeral OpenAutoindex OpenPseudo
    OpenDup SorterOpen ResultRow Param Add Subtract Multiply Divide Remainder Concat Function PureFunc AggStep AggFinal
    Cast DeferredSeek NullRow IdxInsert Insert Delete IdxDelete SorterInsert SorterData RowData Noop Explain RowSetAdd
    ReleaseReg CollSeq Halt Transaction FkCheck FkCounter ResetCount Trace Expire Close HaltIfNull TypeCheck Clear
    FinishSeek TableLock CursorLock ColumnsUsed AddImm Not BitNot BitAnd BitOr ShiftLeft ShiftRight And Or Count Offset
    OffsetLimit Sequence BeginSubrtn Compare Permutation SeekHit IsTrue ZeroOrNull AggInverse AggStep1 AggValue
    FilterAdd GetSubtype SetSubtype"""
)


CURSORS = (
    OPENS
    | OPENS_PRIVATE
    | POSITIONS
    | WHOLE
    | STEPS
    | INDEX_STOPS
    | VIRTUAL
    | _names(
        """Column Rowid IdxRowid NewRowid NullRow IfNullRow DeferredSeek FinishSeek Close Insert Delete IdxInsert
        IdxDelete IfNotOpen IfNoHope SeekScan SeekHit SeekEnd Sequence SequenceTest Offset RowData RowCell SorterInsert
        SorterSort Sort SorterNext SorterData SorterCompare ResetSorter ColumnsUsed CursorHint CursorLock"""
    )
)
"""Opcodes that have a cursor in P1."""

RESUMES = frozenset({"Return", "Yield", "EndCoroutine"})
"""Opcodes that may continue after a call of a subroutine, or where a coroutine stopped."""

ENDS = frozenset({"Goto", "Halt", "Init", "EndCoroutine"})
"""Opcodes that never continue at the next instruction."""

_BRIEF = (
    EXACT
    | SEEKS
    | INDEX_STOPS
    | COMPARISONS
    | _names(
        """Init Goto Halt HaltIfNull Transaction TableLock CursorLock ResultRow Noop Explain Integer Int64 Real String8
        Variable Null SoftNull SCopy IntCopy Copy Move Affinity RealAffinity MustBeInt TypeCheck Column Rowid IdxRowid
        NewRowid MakeRecord OpenRead OpenWrite ReopenIdx Insert Delete IdxInsert IdxDelete DeferredSeek FinishSeek
        NullRow Close ReleaseReg CursorHint ColumnsUsed If IfNot IsNull NotNull Add Subtract Multiply Divide Remainder
        AddImm Not And Or FkCounter FkIfZero FkCheck"""
    )
)
"""Opcodes whose time is bounded by a few pages and a few values, also in a large table."""

_RETURNING = _names("Column Copy SCopy Null String8 Integer Affinity RealAffinity ResultRow")
"""Opcodes between Rewind and Next in the loop that returns the rows of RETURNING."""


def is_brief(program: Sequence[Op]) -> bool:
    """Return whether a program has no loop and no slow instruction, and so is fast for any content of the tables.

    The loop that returns the rows of RETURNING does not count: without other loops, the program has collected few rows.
    """
    returns = _loop_of_returning(program)
    for number, op in enumerate(program):
        if op.address != number or (op.name not in _BRIEF and number not in returns):
            return False
    done: set[int] = set()
    path: dict[int, list[int]] = {0: _following(program[0])}  # address on the current path -> successors to visit
    while path:
        here, left = next(reversed(path.items()))
        if not left:
            del path[here]
            done.add(here)
            continue
        there = left.pop()
        if there in path:
            if here in returns:
                continue
            return False
        if there < len(program) and there not in done:
            path[there] = _following(program[there])
    return True


def _loop_of_returning(program: Sequence[Op]) -> tuple[int, ...]:
    """Return the addresses of OpenEphemeral, Rewind and Next of the loop that returns rows; empty without one."""
    for end, last in enumerate(program):
        if last.name != "Next" or not 0 < last.p2 < end or program[last.p2 - 1].name != "Rewind":
            continue
        uses = [op for op in program if op.name in CURSORS and op.p1 == last.p1 and op.name not in ("Column", "Insert")]
        names = [op.name for op in uses if op.name != "NewRowid"]
        if sorted(names) == ["Next", "OpenEphemeral", "Rewind"]:
            body = program[last.p2 : end]
            if all(op.name in _RETURNING for op in body):
                return tuple(op.address for op in uses if op.name != "NewRowid")
    return ()


def _following(op: Op) -> list[int]:
    """Return the addresses at which a brief program may continue after an instruction."""
    if op.name == "Halt":
        return []
    if op.name in ("Init", "Goto"):
        return [op.p2]
    return [op.address + 1, op.p2] if op.p2 and may_jump(op) else [op.address + 1]  # P2 = 0 means no jump


def may_jump(op: Op) -> bool:
    """Return whether an instruction may jump to its P2."""
    return op.name not in _NO_JUMPS


def jump_targets(program: list[Op]) -> set[int]:
    """Return at least all addresses to which an instruction may jump."""
    found: set[int] = set()
    for op in program:
        if may_jump(op):
            found.add(op.p2)
        if op.name == "Jump":
            found |= {op.p1, op.p3}
        if op.name in ("Gosub", "Yield", "InitCoroutine", "EndCoroutine", "Return"):
            found |= {op.address + 1, op.p3}
    return found


UNIQUE_HALTS = frozenset({2067, 1555, 2579})
"""Result codes of a violated UNIQUE, PRIMARY KEY or rowid."""
FOREIGN_KEY_HALT = 787
