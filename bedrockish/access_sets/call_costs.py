"""Limits on the lengths of values, so that no single step of a statement takes long: SQLite cannot interrupt a step.

The time of most functions grows with the length of their values. The time of a few grows with the product of two
lengths, so that one ``trim(x, y)`` of two short books takes hours. All calls in a program are assumed to run between
two points at which SQLite can be interrupted. SQLite itself refuses a value above the limit that is set here. A
statement refused in the node's loop is run again in a worker thread, with a higher limit; a refusal there is final.

LIKE and GLOB try a pattern at each position of a text. So the longer the pattern may be, by the statement's parameters
and constants, the shorter the text must be.

The memory of a row is limited in the same way: a program may name one long value a thousand times. Each mention is a
copy; SQLite cannot be interrupted between these copies, and the memory account counts them only in the complete row.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import apsw

from bedrockish.access_sets import search_costs
from bedrockish.access_sets.opcodes import Op, is_brief
from bedrockish.access_sets.search_costs import Searches, searches
from bedrockish.errors import TooLargeError
from bedrockish_journal.storage.packing import FUNCTION as UNPACKED

LONGEST = 65 << 20  # bytes of a value in any statement
LOOP_BYTES = 1 << 20  # bytes of a value in the loop: about a millisecond for most functions
LINE_BYTES = 4 << 20  # bytes of the values of all calls of a program in the loop, together
COPIES_BYTES = 32 << 20  # bytes of all long values of a program in the loop, together
WORKER_BYTES = 128 << 20  # bytes of all values made by calls in a worker: about two seconds for most functions
COPIED_BYTES = 256 << 20  # bytes of all long values copied in a worker, which takes memory and hardly any time
PATHS = 4  # number of path arguments that count as one more call
INDEXED_BYTES = 64 << 10  # bytes of a value written to a virtual table in the loop, where FTS5 cuts it into words
SCHEMA_BYTES = 64 << 10  # bytes of a value in a schema statement in the loop, whose calls are unknown
PATTERN_LOOP = 256  # bytes of a pattern of LIKE and GLOB in the loop
PATTERN_WORK = 1 << 30  # bytes of the text times bytes of the pattern, in a worker: less than two seconds
PATTERN, PATTERN_LEAST = 1_000, 16  # bytes: the highest and the lowest limit for a pattern of LIKE and GLOB
# ``PATTERN_SHORT``: bytes; the lowest limit if a pattern depends on a row, and the longest pattern that may be joined
# from several constants and parameters. ``PATTERN_MORE``: bytes that an expression such as '%' || ? may add to these.
PATTERN_SHORT, PATTERN_MORE = 64, 8
INDENT = 8  # a json_pretty with a constant indentation of up to this many characters counts as one with the default
ARGUMENTS = 127  # limit for the arguments of a function, because it may search each of them
_VARIADIC = 16  # number of ordinary calls for which a call with paths counts in the loop
INSTRUCTIONS = 1_000_000  # limit for the instructions of a program: enough for a list of 300,000 values
TOO_COMPLEX = "LIKE or GLOB pattern too complex"
IN_VEC0 = "Internal sqlite-vec error"  # the error of vec0 for each error of SQLite, also for a chunk that is too long
NO_TEXT = "SQL logic error"  # SQLite's error if a module fails without a text of its own
NEW_CHUNK = f"{IN_VEC0}: Could not insert a new vector chunk"

CALLS = frozenset(
    {"Function", "PureFunc", "AggStep", "AggStep1", "AggInverse", "AggValue", "AggFinal", "VFilter", "Cast"}
)
_BRIEF_NAMES = """date time datetime julianday unixepoch timediff current_date current_time current_timestamp random
    typeof changes total_changes last_insert_rowid cluster_clock transaction_clock count"""
_BRIEF_CALLS = frozenset(f"{name}({count})" for name in _BRIEF_NAMES.split() for count in (-1, 0, 1, 2))
"""Functions that neither read a long value to its end nor return one."""
_GROWING = frozenset(
    f"{name}({count})"
    for name in ("json_quote", "json_array", "json_object", "json_group_array", "json_group_object", "unistr_quote")
    for count in (-1, 1, 2)
)
"""Functions whose result may be six times as long as the argument."""
_GROWTH = 4  # number of long values for which a call of a function in ``_GROWING`` counts
_LOADS = frozenset({"Variable", "Column", "VColumn", "Copy", "SCopy", "Param"})
_COLUMNS = frozenset({"Column", "VColumn"})
COSTLY = CALLS | _LOADS | {"String8", "Integer", "Concat"}
"""The opcodes that ``lengths`` counts."""
_PRODUCTS = {
    "instr(2)": (64 << 10, 640 << 10),
    "replace(3)": (64 << 10, 640 << 10),
    "trim(2)": (4 << 10, 64 << 10),
    "ltrim(2)": (4 << 10, 64 << 10),
    "rtrim(2)": (4 << 10, 64 << 10),
    "unhex(2)": (4 << 10, 64 << 10),
    "json_patch(2)": (16 << 10, 160 << 10),
    "jsonb_patch(2)": (16 << 10, 160 << 10),
    "json_pretty(1)": (8 << 10, 64 << 10),
    "json_pretty(2)": (512, 1 << 10),
    "geopoly_overlap(2)": (12 << 10, 128 << 10),
    "geopoly_within(2)": (12 << 10, 128 << 10),
    "like(2)": (64 << 10, 0),
    "like(3)": (64 << 10, 0),
    "glob(2)": (64 << 10, 0),
}
"""Functions whose time grows with the product of two lengths -> the longest value for about 20 ms, and for about 2 s.
0: any length, because the other value, a pattern, is bounded. For ``json_pretty`` the product is one of memory: each
element is indented by its depth."""
_PATTERNS = frozenset({"like(2)", "like(3)", "glob(2)"})
LEAST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """The allowed lengths of a statement's values, in bytes."""

    loop: int  # the longest value in the node's loop
    in_worker: int = 0  # the longest value in a worker thread; 0 for any length
    has_patterns: bool = False  # whether the statement calls LIKE or GLOB
    culprits: str = ""  # the functions that limit ``in_worker``, as a text
    # Number of long values made or copied before an interrupt works; 0 if they do not limit ``in_worker``.
    mentions: int = 0
    is_brief: bool = False  # whether the statement ends at once, whatever the tables contain, and needs no watchdog
    # The lengths of text constants that may be patterns; None if they are not known.
    constants: tuple[int, ...] | None = None
    patterns: int = 0  # number of calls of LIKE and GLOB; negative if a pattern depends on a row
    has_calls: bool = True  # whether the statement may call a function
    searches: Searches | None = None  # the texts for which the statement searches with FTS5; None if it does not

    @property
    def depends_on_values(self) -> bool:
        """Whether the lengths are for the statement's constants and parameters, at their positions."""
        return self.has_patterns or self.searches is not None


OF_SCHEMA = Lengths(SCHEMA_BYTES, 0, True)


def lengths(programs: Sequence[Sequence[Op]]) -> Lengths:
    """Return the allowed lengths of a statement's values, given its own program and those of its triggers."""
    found, searched = _lengths(programs), searches(programs)
    if any(op.name == "VUpdate" for program in programs for op in program):
        found = replace(found, loop=min(found.loop, INDEXED_BYTES))
    return found if searched is None else replace(found, searches=searched)


def _lengths(programs: Sequence[Sequence[Op]]) -> Lengths:
    """Return the result of ``lengths`` before the limits for virtual tables."""
    names = [name for program in programs for name in _names(program)]
    made = sum(map(_calls, programs))
    copied = sum(map(_copies, programs)) + max(0, _rows(programs) - 1)
    mentions = made + copied
    loop = min(LOOP_BYTES, COPIES_BYTES // max(1, mentions))
    in_worker = min(WORKER_BYTES // max(1, made), COPIED_BYTES // max(1, copied))
    if in_worker >= LONGEST:
        in_worker, mentions = 0, 0
    if not names:
        has_no_loop = len(programs) == 1 and is_brief(programs[0])
        if not mentions and loop == LOOP_BYTES:
            return BRIEF if has_no_loop else LOOPING
        return Lengths(max(loop, LEAST_BYTES), in_worker, mentions=mentions, is_brief=has_no_loop, has_calls=False)
    products = [name for name in names if name in _PRODUCTS]
    loop = min(loop, LINE_BYTES // max(1, sum(map(_loop_cost, names))))
    culprits: set[str] = set()
    root = max(1, isqrt(len(products)))
    for name in products:
        brief, most = _PRODUCTS[name]
        loop = min(loop, brief // root)
        if most:
            if not in_worker or most // root < in_worker:
                in_worker, mentions = most // root, 0
            culprits.add(f"{name.partition('(')[0]}()")
    culprit = ", ".join(sorted(culprits))
    if _PATTERNS.isdisjoint(products):
        return Lengths(max(loop, LEAST_BYTES), in_worker, False, culprit, mentions)
    texts = (_size(op.p4) for program in programs for op in program if op.name == "String8")
    patterns = [op.p1 & 1 for program in programs for op in program if (op.p4 or "").lower() in _PATTERNS]
    count = len(patterns) if all(patterns) else -len(patterns)
    known = tuple({size for size in texts if 0 < size <= PATTERN})
    return Lengths(max(loop, LEAST_BYTES), in_worker, True, culprit, mentions, constants=known, patterns=count)


def _names(program: Sequence[Op]) -> Iterator[str]:
    """Yield each function that a program calls, as its name and its number of arguments: ``trim(2)``."""
    short = {op.p2 for op in program if op.name == "String8" and len(op.p4 or "") <= INDENT}
    for op in program:
        if op.name in CALLS:
            name = (op.p4 or "").lower()
            yield "json_pretty(1)" if name == "json_pretty(2)" and op.p2 + 1 in short else name


def _loop_cost(name: str) -> int:
    """Return the number of ordinary calls for which one call of this function counts in the node's loop."""
    return 0 if _is_brief_call(name) else _VARIADIC if _has_paths(name) else 1


def _calls(program: Sequence[Op]) -> int:
    """Return the number of long values of a program: one for each call, concatenation or ``PATHS`` path arguments."""
    found, paths, written = 0, 0, frozenset[int]()
    for op in program:
        if op.name == "Concat":
            found += 1
        elif op.name in CALLS and not _is_brief_call(name := (op.p4 or "").lower()):
            found += _GROWTH if name in _GROWING else 1
            if _has_paths(name):
                written = written or frozenset(_target(other) for other in program)
                paths += next(count for count in range(1, ARGUMENTS + 2) if op.p2 + count not in written)
    return found + paths // PATHS


def _target(op: Op) -> int:
    """Return the register that an instruction writes; valid only if it may write an argument of a call."""
    return op.p3 if op.name in ("Column", "VColumn", "Concat", "Function", "PureFunc") else op.p2


def _copies(program: Sequence[Op]) -> int:
    """Return the number of times that a program repeats a load of a column, parameter or register.

    The first loads are bounded: all parameters together, and all columns of one row together, are at most as long as
    one value may be. Each repetition may add that length again.
    """
    most: Counter[tuple[str, int]] = Counter()
    for (name, first, _), count in Counter(
        (op.name, op.p1 if op.name in _COLUMNS else 0, op.p2 if op.name in _COLUMNS else op.p1)
        for op in program
        if op.name in _LOADS
    ).items():
        most[name, first] = max(most[name, first], count)
    return sum(most.values()) - len(most)


def _rows(programs: Sequence[Sequence[Op]]) -> int:
    """Return the number of cursors from which the programs read columns."""
    return len({(number, op.p1) for number, program in enumerate(programs) for op in program if op.name in _COLUMNS})


def _is_brief_call(name: str) -> bool:
    """Return whether a function takes hardly any time, such as the one that unpacks an entry's value."""
    return name in _BRIEF_CALLS or name.startswith(f"{UNPACKED}(")


def _has_paths(name: str) -> bool:
    """Return whether a function has a variable number of arguments with paths in a JSON text."""
    return name.startswith("json") and name.endswith("(-1)")


LOOPING = Lengths(LOOP_BYTES, has_calls=False)
BRIEF = Lengths(LOOP_BYTES, is_brief=True, has_calls=False)


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if len(value) > PATTERN or value.isascii() else len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes) else 0


def longest_pattern(lengths: Lengths, params: Sequence[object]) -> int:
    """Return the greatest size of a pattern of LIKE or GLOB in a worker, in bytes; 0 if it is not known."""
    if lengths.constants is None:
        return 0
    sizes = [size for size in (*lengths.constants, *map(_size, params)) if size <= PATTERN]
    known = sum(sizes) if sum(sizes) <= PATTERN_SHORT else max(*sizes, PATTERN_SHORT)
    least = PATTERN_SHORT if lengths.patterns < 0 else PATTERN_LEAST
    return min(PATTERN, max(least, known + PATTERN_MORE))


def _beside_pattern(lengths: Lengths, params: Sequence[object]) -> int:
    """Return the greatest size of a value in a worker, in bytes: LIKE or GLOB may try the longest pattern on it."""
    return PATTERN_WORK // (longest_pattern(lengths, params) * max(1, abs(lengths.patterns)))


def fits(lengths: Lengths, params: Sequence[object], *, in_loop: bool = False) -> bool:
    """Return whether all texts that a statement searches for with FTS5 are short enough, for these parameters."""
    if lengths.searches is None:
        return True
    sizes = {place: _size(params[place]) for place in lengths.searches.params if place < len(params)}
    return lengths.searches.fits(sizes, search_costs.LOOP if in_loop else search_costs.WORKER)


def shorten(db: apsw.Connection, lengths: Lengths, *, in_loop: bool, most: int, params: Sequence[object] = ()) -> None:
    """Set a connection's limits to the lengths allowed for the statement about to run, at most ``most``."""
    length = (lengths.loop if in_loop else lengths.in_worker) or most
    if lengths.has_patterns:
        if in_loop:
            db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_LOOP)
        elif lengths.constants is not None:
            db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, longest_pattern(lengths, params))
            length = min(length, _beside_pattern(lengths, params))
    if not fits(lengths, params, in_loop=in_loop):
        length = min(length, search_costs.LOOP if in_loop else search_costs.WORKER)
    if length < most:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, length)


def restore(db: apsw.Connection, lengths: Lengths, *, most: int) -> None:
    """Undo the effect of ``shorten`` after the statement."""
    if lengths.has_patterns:
        db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
    db.limit(apsw.SQLITE_LIMIT_LENGTH, most)


def bound(db: apsw.Connection, most: int) -> None:
    """Set the limits of all statements on a new connection: of values (``most`` bytes), patterns and programs."""
    db.limit(apsw.SQLITE_LIMIT_LENGTH, most)
    db.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
    db.limit(apsw.SQLITE_LIMIT_FUNCTION_ARG, ARGUMENTS)
    db.limit(apsw.SQLITE_LIMIT_VDBE_OP, INSTRUCTIONS)


def is_too_long(error: apsw.Error) -> bool:
    """Return whether a statement may have failed because a value or a pattern is too long.

    The modules and functions for vectors report this by errors of their own, or without a text.
    """
    text = str(error)
    is_told = isinstance(error, apsw.TooBigError | apsw.NoMemError) or text == TOO_COMPLEX
    return is_told or text == NO_TEXT or text.startswith(IN_VEC0)


def too_long(error: apsw.Error, lengths: Lengths, sql: str, params: Sequence[object] = ()) -> TooLargeError | None:
    """Return the error for a statement whose values are too long for its functions; None for any other error."""
    if isinstance(error, apsw.TooBigError) and not fits(lengths, params):
        return TooLargeError(
            f"the text of a MATCH may have {search_costs.WORKER} bytes, since nothing can interrupt FTS5 while it "
            "compares each term with all before it; if it comes from a row or from a function, no value of the "
            "statement may be longer: read it first, and send it as a parameter",
            sql=sql,
            limit=search_costs.WORKER,
        )
    longest = longest_pattern(lengths, params)
    is_long = isinstance(error, apsw.TooBigError) and longest
    if is_long and _beside_pattern(lengths, params) < (lengths.in_worker or LONGEST):
        return TooLargeError(
            f"a statement that calls LIKE or GLOB {abs(lengths.patterns)} times, with patterns of up to {longest} "
            f"bytes, may have values of at most {_beside_pattern(lengths, params)} bytes; shorten the pattern or "
            "send it as a parameter, have fewer of them in one statement, or do this in your program",
            sql=sql,
            limit=_beside_pattern(lengths, params),
        )
    if isinstance(error, apsw.TooBigError) and lengths.mentions:
        return TooLargeError(
            f"a value of more than {lengths.in_worker} bytes is too long for this statement, which makes or copies "
            f"{lengths.mentions} such values before it can be interrupted; name it fewer times, send fewer rows or "
            "columns in one statement, or do this in your program",
            sql=sql,
            limit=lengths.in_worker,
        )
    if isinstance(error, apsw.TooBigError) and lengths.in_worker:
        return TooLargeError(
            f"{lengths.culprits} in a statement may have values of at most {lengths.in_worker} bytes here, since its "
            "time grows with the product of two lengths and nothing can interrupt it; do this in your program",
            sql=sql,
            limit=lengths.in_worker,
        )
    if str(error).startswith(NEW_CHUNK):
        return TooLargeError(
            f"{error}: vec0 stores chunk_size vectors, by default 1024, in one value, which may have {LONGEST} bytes; "
            "name a smaller chunk_size in the definition of the table",
            sql=sql,
            limit=LONGEST,
        )
    if str(error) == TOO_COMPLEX:
        return TooLargeError(
            f"a pattern of LIKE or GLOB may have {PATTERN} bytes as a parameter or constant, and {longest or PATTERN} "
            "here as the value of a column or an expression; make it shorter, or read it first and send it as a "
            "parameter",
            sql=sql,
            limit=PATTERN,
        )
    return None
