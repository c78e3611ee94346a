"""Lengths of values for which no single step of a statement takes long: SQLite cannot be interrupted within one.

The time of most functions grows with the length of their values; that of a few with the product of two lengths, so one
``trim(x, y)`` of two short books takes hours. A statement's program tells how many calls stand between two jumps at
most: all of them. SQLite itself refuses a value above its limit. In the loop the statement is then run again in a
worker; there the refusal is final, since nothing could end the call.

LIKE and GLOB try a pattern at each place of a text. A short pattern may meet a long text, and a long pattern a text of
a few megabytes: the statement's parameters and constants tell which of the two holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import apsw

from bedrockish.access_sets.opcodes import Op, is_brief
from bedrockish.errors import TooLargeError

LOOP_BYTES = 1 << 20  # of a value in the loop: about a millisecond for most functions
LINE_BYTES = 4 << 20  # of all calls of a program together
SCHEMA_BYTES = 64 << 10  # of a value in a schema statement in the loop, whose calls are unknown
PATTERN_LOOP = 256  # bytes of a pattern of LIKE and GLOB in the loop; in a worker ...
PATTERN_SHORT = 64  # ... on values of any length, unless a parameter or a constant is longer; then ...
PATTERN, PATTERN_BYTES = 1_000, 4 << 20  # ... on values of so many bytes
ARGUMENTS = 127  # of a function, each of which may go through another one
_VARIADIC = 16  # ordinary calls that a call with paths counts for
INSTRUCTIONS = 1_000_000  # of a program: a list of 300,000 values has as many
TOO_COMPLEX = "LIKE or GLOB pattern too complex"

CALLS = frozenset(
    {"Function", "PureFunc", "AggStep", "AggStep1", "AggInverse", "AggValue", "AggFinal", "VFilter", "Cast"}
)
_PRODUCTS = {
    "instr(2)": (64 << 10, 1 << 20),
    "replace(3)": (64 << 10, 1 << 20),
    "trim(2)": (4 << 10, 96 << 10),
    "ltrim(2)": (4 << 10, 96 << 10),
    "rtrim(2)": (4 << 10, 96 << 10),
    "unhex(2)": (4 << 10, 96 << 10),
    "json_patch(2)": (16 << 10, 320 << 10),
    "jsonb_patch(2)": (16 << 10, 320 << 10),
    "like(2)": (64 << 10, 0),
    "like(3)": (64 << 10, 0),
    "glob(2)": (64 << 10, 0),
}
"""Functions whose time is the product of two lengths -> the longest value for about 20 ms, and for about 4 s; 0: any,
because the patterns are bounded."""
_PATTERNS = frozenset({"like(2)", "like(3)", "glob(2)"})
LEAST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """The allowed lengths of a statement's values, in bytes.

    Attributes:
        loop: in the node's loop.
        in_worker: in another thread; 0: any length.
        has_patterns: it calls LIKE or GLOB.
        culprits: the functions because of which it may not be ``in_worker``, as a text.
        is_brief: whatever is in the tables, it is over in a moment: it needs no watching.
        constant: with patterns, bytes of its longest text constant; -1: they are not known.
        has_calls: it calls a function, or may.
    """

    loop: int
    in_worker: int = 0
    has_patterns: bool = False
    culprits: str = ""
    is_brief: bool = False
    constant: int = -1
    has_calls: bool = True


OF_SCHEMA = Lengths(SCHEMA_BYTES, 0, True)


def lengths(programs: Sequence[Sequence[Op]]) -> Lengths:
    """Return how long the values may be of a statement that has these programs, its triggers' among them."""
    names = [(op.p4 or "").lower() for program in programs for op in program if op.name in CALLS]
    if not names:
        return _BRIEF if len(programs) == 1 and is_brief(programs[0]) else _PLAIN
    products = [name for name in names if name in _PRODUCTS]
    loop, in_worker = min(LOOP_BYTES, LINE_BYTES // sum(_VARIADIC if _has_paths(name) else 1 for name in names)), 0
    culprits: set[str] = set()
    root = max(1, isqrt(len(products)))
    for name in products:
        brief, most = _PRODUCTS[name]
        loop = min(loop, brief // root)
        if most:
            in_worker = min(in_worker or most, most // root)
            culprits.add(f"{name.partition('(')[0]}()")
    has_patterns = not _PATTERNS.isdisjoint(products)
    texts = (op.p4 or "" for program in programs for op in program if op.name == "String8")
    constant = max((_size(text) for text in texts), default=0) if has_patterns else -1
    return Lengths(max(loop, LEAST_BYTES), in_worker, has_patterns, ", ".join(sorted(culprits)), constant=constant)


def _has_paths(name: str) -> bool:
    """Return whether a function looks for any number of paths in a JSON text."""
    return name.startswith("json") and name.endswith("(-1)")


_PLAIN = Lengths(LOOP_BYTES, has_calls=False)
_BRIEF = Lengths(LOOP_BYTES, is_brief=True, has_calls=False)


def _size(value: object) -> int:
    """Return how many bytes a text or a blob has; 0 for any other value."""
    if isinstance(value, str):
        return len(value) if len(value) > PATTERN or value.isascii() else len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes) else 0


def has_long_pattern(lengths: Lengths, params: Sequence[object]) -> bool:
    """Return whether a parameter or a constant of a statement may be a pattern that is not short."""
    if not lengths.has_patterns or lengths.constant < 0:
        return False
    return any(PATTERN_SHORT < size <= PATTERN for size in (lengths.constant, *map(_size, params)))


def shorten(db: apsw.Connection, lengths: Lengths, *, in_loop: bool, most: int, params: Sequence[object] = ()) -> None:
    """Let values on a connection be as long as those of a statement that is about to run may be, at most ``most``."""
    length = (lengths.loop if in_loop else lengths.in_worker) or most
    if lengths.has_patterns:
        if in_loop:
            db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_LOOP)
        elif has_long_pattern(lengths, params):
            length = min(length, PATTERN_BYTES)
        elif lengths.constant >= 0:
            db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_SHORT)
    if length < most:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, length)


def restore(db: apsw.Connection, lengths: Lengths, *, most: int) -> None:
    """Undo the effect of ``shorten``: the statement is over."""
    if lengths.has_patterns:
        db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
    db.limit(apsw.SQLITE_LIMIT_LENGTH, most)


def bound(db: apsw.Connection, most: int) -> None:
    """Give a new connection the limits of all statements: ``most`` bytes of a value, a pattern's, and a program's."""
    db.limit(apsw.SQLITE_LIMIT_LENGTH, most)
    db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
    db.limit(apsw.SQLITE_LIMIT_FUNCTION_ARG, ARGUMENTS)
    db.limit(apsw.SQLITE_LIMIT_VDBE_OP, INSTRUCTIONS)


def is_too_long(error: apsw.Error) -> bool:
    """Return whether a statement has failed because a value or a pattern is too long."""
    return isinstance(error, apsw.TooBigError) or str(error) == TOO_COMPLEX


def too_long(error: apsw.Error, lengths: Lengths, sql: str, params: Sequence[object] = ()) -> TooLargeError | None:
    """Return the error for a statement whose values are too long for its functions; None for any other error."""
    if isinstance(error, apsw.TooBigError) and has_long_pattern(lengths, params):
        return TooLargeError(
            f"a statement that calls LIKE or GLOB, and has a text of more than {PATTERN_SHORT} bytes that may be the "
            f"pattern, may have values of at most {PATTERN_BYTES} bytes; shorten it, or do this in your program",
            sql=sql,
            limit=PATTERN_BYTES,
        )
    if isinstance(error, apsw.TooBigError) and lengths.in_worker:
        return TooLargeError(
            f"{lengths.culprits} in a statement may have values of at most {lengths.in_worker} bytes here, since its "
            "time grows with the product of two lengths and nothing can interrupt it; do this in your program",
            sql=sql,
            limit=lengths.in_worker,
        )
    if str(error) == TOO_COMPLEX:
        return TooLargeError(
            f"a pattern of LIKE or GLOB may have {PATTERN} bytes as a parameter or constant, and {PATTERN_SHORT} as "
            "the value of a column or an expression; make it shorter, or read it first and send it as a parameter",
            sql=sql,
            limit=PATTERN,
        )
    return None
