"""How long values may be, so that no single step of a statement takes long: SQLite cannot be interrupted within one.

The time of most functions grows with the length of their values; that of a few with the product of two lengths, so that
one ``trim(x, y)`` of two short books takes hours. A statement's program says how many calls stand between two jumps at
most: all of them. SQLite itself refuses what is longer than its limit. In the loop that only means that the statement
is run again in a worker; there it is refused for good, since nobody could end it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import apsw

from bedrockish.access_sets.opcodes import Op, is_brief
from bedrockish.errors import TooLargeError

LOOP_BYTES = 1 << 20  # of a value in the loop: about a millisecond for most functions
LINE_BYTES = 4 << 20  # of all calls of a program together
SCHEMA_BYTES = 64 << 10  # of a value in a schema statement in the loop, of which nobody knows what it calls
PATTERN_LOOP, PATTERN = 256, 1_000  # bytes of a pattern of LIKE and GLOB, which are tried at each place of a text
TOO_COMPLEX = "LIKE or GLOB pattern too complex"

CALLS = frozenset(
    {"Function", "PureFunc", "AggStep", "AggStep1", "AggInverse", "AggValue", "AggFinal", "VFilter", "Cast"}
)
_PRODUCTS = {
    "instr(2)": (64 << 10, 2 << 20),
    "replace(3)": (64 << 10, 2 << 20),
    "trim(2)": (4 << 10, 256 << 10),
    "ltrim(2)": (4 << 10, 256 << 10),
    "rtrim(2)": (4 << 10, 256 << 10),
    "unhex(2)": (4 << 10, 256 << 10),
    "like(2)": (64 << 10, 0),
    "like(3)": (64 << 10, 0),
    "glob(2)": (64 << 10, 0),
}
"""Functions whose time is the product of two lengths -> the longest value for about 20 ms, and for about 20 s; 0: any,
because patterns are short."""
_PATTERNS = frozenset({"like(2)", "like(3)", "glob(2)"})
LEAST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long a statement's values may be, in bytes.

    Attributes:
        loop: in the node's loop.
        in_worker: in another thread; 0: as long as any.
        has_patterns: it calls LIKE or GLOB.
        culprits: the functions because of which it may not be ``in_worker``, as a text.
        is_brief: whatever is in the tables, it is over in a moment: nobody needs to look after it.
    """

    loop: int
    in_worker: int = 0
    has_patterns: bool = False
    culprits: str = ""
    is_brief: bool = False


OF_SCHEMA = Lengths(SCHEMA_BYTES, 0, True)


def lengths(programs: Sequence[Sequence[Op]]) -> Lengths:
    """Return how long the values may be of a statement that has these programs, its triggers' among them."""
    names = [(op.p4 or "").lower() for program in programs for op in program if op.name in CALLS]
    if not names:
        return _BRIEF if len(programs) == 1 and is_brief(programs[0]) else _PLAIN
    products = [name for name in names if name in _PRODUCTS]
    loop, in_worker = min(LOOP_BYTES, LINE_BYTES // len(names)), 0
    culprits: set[str] = set()
    root = max(1, isqrt(len(products)))
    for name in products:
        brief, most = _PRODUCTS[name]
        loop = min(loop, brief // root)
        if most:
            in_worker = min(in_worker or most, most // root)
            culprits.add(f"{name.partition('(')[0]}()")
    has_patterns = not _PATTERNS.isdisjoint(products)
    return Lengths(max(loop, LEAST_BYTES), in_worker, has_patterns, ", ".join(sorted(culprits)))


_PLAIN = Lengths(LOOP_BYTES)
_BRIEF = Lengths(LOOP_BYTES, is_brief=True)


def shorten(db: apsw.Connection, lengths: Lengths, *, in_loop: bool, most: int) -> None:
    """Let values on a connection be as long as those of a statement that is about to run may be, at most ``most``."""
    length = lengths.loop if in_loop else lengths.in_worker
    if length:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, min(length, most))
    if in_loop and lengths.has_patterns:
        db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_LOOP)


def restore(db: apsw.Connection, lengths: Lengths, *, in_loop: bool, most: int) -> None:
    """Undo what ``shorten`` has done: the statement is over."""
    if in_loop or lengths.in_worker:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, most)
    if in_loop and lengths.has_patterns:
        db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)


def bound(db: apsw.Connection, most: int) -> None:
    """Give a new connection the lengths that hold for all statements: ``most`` bytes of a value, and a pattern's."""
    db.limit(apsw.SQLITE_LIMIT_LENGTH, most)
    db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)


def is_too_long(error: apsw.Error) -> bool:
    """Whether a statement has failed because a value or a pattern is too long."""
    return isinstance(error, apsw.TooBigError) or str(error) == TOO_COMPLEX


def too_long(error: apsw.Error, lengths: Lengths, sql: str) -> TooLargeError | None:
    """Return the error for a statement whose values are too long for what it does with them; None: it is another."""
    if isinstance(error, apsw.TooBigError) and lengths.in_worker:
        return TooLargeError(
            f"{lengths.culprits} in a statement may have values of at most {lengths.in_worker} bytes here, since its "
            "time grows with the product of two lengths and nothing can interrupt it; do this in your program",
            sql=sql,
            limit=lengths.in_worker,
        )
    if str(error) == TOO_COMPLEX:
        return TooLargeError(
            f"a pattern of LIKE or GLOB may have {PATTERN} bytes; make it shorter", sql=sql, limit=PATTERN
        )
    return None
