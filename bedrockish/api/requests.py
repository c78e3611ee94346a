"""A client's requests and a node's answers, as plain values.

Results are encoded the same way on the wire and in the journal, from which a retried command gets its first answer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any

import cbor2

from bedrockish.api.column_blocks import Blocks, rows_of_blocks
from bedrockish.common.trace_context import current_traceparent
from bedrockish.errors import ForeignClusterError, ProtocolMismatchError, UsageError
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.transaction import DIGEST_BYTES, LONG_BYTES, head
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, check

STALE, SESSION, STRICT = "stale", "session", "strict"
READ_LEVELS = (STALE, SESSION, STRICT)
SERIALIZABLE, SNAPSHOT = "serializable", "snapshot"
ISOLATIONS = (SERIALIZABLE, SNAPSHOT)
COMMAND_CHARACTERS_MAX = 200

ADD, PROMOTE, DEMOTE, REMOVE, ADDRESS, REPLACE = "add", "promote", "demote", "remove", "address", "replace"
RAISE = "level"
VOID = "void"
USER_ADD, USER_GRANT, USER_REVOKE, USER_PASSWORD, USER_REMOVE = USER_ACTIONS = (
    "user add",
    "user grant",
    "user revoke",
    "user passwd",
    "user remove",
)
MEMBER_ACTIONS = (ADD, PROMOTE, DEMOTE, REMOVE, ADDRESS, REPLACE, RAISE, VOID, *USER_ACTIONS)

FEW_STATEMENTS = 10  # in a request of at most so many statements, long values are hashed without a copy
MANY_RESULTS = 23  # the most items of a CBOR array whose head has one byte
NAMES_CHARACTERS_MAX = 1_000  # the encoding of longer column names is not cached: a name may be a long text

Params = Sequence[Any] | Mapping[str, Any] | None
_sql = attrgetter("sql")


@value
class Token:
    """The commits that a session has seen, carried by its client. Any node that has them can serve the session."""

    vector: Vector = field(default_factory=dict)
    clock: int = 0
    _encoded: bytes = field(default=b"", init=False, compare=False, repr=False)

    def encode(self) -> bytes:
        """Encode the token. The bytes are cached, because between two commits all answers have the same token."""
        if not self._encoded:
            encoded = cbor2.dumps([dict(self.vector), self.clock])
            object.__setattr__(self, "_encoded", encoded)
        return self._encoded


TOKEN_BYTES_KEPT = 512  # the decoding of a longer token is not cached


def decode_token(data: bytes | None) -> Token:
    """Decode a token; None gives the empty token.

    Raises:
        UsageError: the bytes are not a token.
    """
    if not data:
        return Token()
    return _decode_short(data) if len(data) <= TOKEN_BYTES_KEPT else _decode_token(data)


def _decode_token(data: bytes) -> Token:
    try:
        vector, clock = cbor2.loads(data)
        if type(clock) is not int or not 0 <= clock < 1 << 64:
            raise UsageError(f"a session token cannot have the clock {clock!r}")
        return Token(check(vector), clock)
    except (cbor2.CBORError, ValueError, TypeError, EntryMalformedError) as error:
        raise UsageError(f"this is not a session token: {error}") from error


_decode_short = lru_cache(256)(_decode_token)  # between two commits, a node's sessions have few different tokens


def seal_token(token: Token, cluster_id: str) -> bytes:
    """Encode a token with the id of its cluster, for use outside of the session; empty for the empty token."""
    return b"" if token == Token() else cbor2.dumps([dict(token.vector), token.clock, cluster_id])


def open_token(data: bytes | None) -> tuple[Token, str]:
    """Decode a sealed token; return it with the id of its cluster, which is empty in a token of an earlier release.

    Raises:
        UsageError: the bytes are not a token.
    """
    try:
        found = cbor2.loads(data) if data else None
    except (cbor2.CBORError, ValueError, TypeError):
        found = None
    if isinstance(found, list) and len(found) == 3 and isinstance(found[2], str):
        return decode_token(cbor2.dumps(found[:2])), found[2]
    return decode_token(data), ""


def check_cluster(what: str, given: str, own: str) -> None:
    """Check that a token or a cursor belongs to the cluster that receives it.

    Args:
        what: name of the token or cursor, for the error.
        given: the id of the cluster in the token or cursor; empty if it has none.
        own: the id of the receiving cluster.

    Raises:
        ForeignClusterError: the ids differ.
    """
    if given != own:
        whose = f"of the cluster {given}" if given else "of no cluster"
        raise ForeignClusterError(
            f"{what} is {whose}, and this is the cluster {own or 'without an id'}; leave {what} out here",
            given=given,
            cluster=own,
        )


@value
class Statement:
    """One SQL statement and its parameters, by position or by name."""

    sql: str
    params: Params = None


@value
class MemberChange:
    """A change of the cluster's members, or of its users."""

    # ``add`` (as a learner), ``promote`` (to a voter), ``demote``, ``remove``, ``address``, ``replace``, ``level``
    # (raise the cluster's release level to the lowest level that a member has reported), ``void`` (record that all
    # members skip a transaction's changes), or one of ``USER_ACTIONS``.
    action: str
    node: str  # the member, user or transaction to change
    address: str = ""  # the address of the node (add, address), or of its successor (replace)
    successor: str = ""  # name of the node that takes the member's place (replace)
    store: str = ""  # id of the file of the added node; empty if it is not known yet
    # Make the change even if the remaining voters have no quorum until further voters return, or no admin is left.
    force: bool = False
    level: int = LEVEL  # the release level of the added node
    role: str = ""  # the user's role (add, grant, revoke)
    secret: str = field(default="", repr=False)  # the hash of the user's password (add, passwd)
    table: str = ""  # the table for which the role is granted (grant, revoke); empty for the whole database


@value
class Request:
    """One command: statements that run as one transaction."""

    command: str  # unique id chosen by the client; a command with this id is applied at most once in the whole cluster
    statements: tuple[Statement, ...]  # statements to run, in order
    read: str = SESSION  # read level, used when no statement writes
    isolation: str = SERIALIZABLE  # ``serializable`` or ``snapshot``
    token: Token = field(default_factory=Token)  # the session's token
    timeout_s: float = 30.0  # how long the client waits, in seconds
    change: MemberChange | None = None  # a change of the members, instead of statements
    read_only: bool = False  # refuse the request if it writes
    # Limit in seconds that replaces ``timeout_s`` for a request that is still executed after ``timeout_s``; 0: none.
    longest_s: float = 0.0
    user: str = ""  # the authenticated user; empty in a cluster without users. No client can set it.
    trace: str = ""  # the ``traceparent`` of the span to which the request belongs; empty if no trace is recorded
    # If the request is a step of a command, the digest of the whole command; empty: ``digest_of`` computes the digest.
    digest: bytes = b""
    # Name of the session's TEMP objects at the node, with a ``+`` before it if this request makes the first of them;
    # empty if the session has none.
    temporary: str = ""
    # Whether the client reads the rows of a large result by column. The node sets this by the client's link.
    by_column: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The SQL texts of the statements."""
        return tuple(map(_sql, self.statements))


def digest_of(request: Request) -> bytes:
    """Return the digest of a request, which depends only on its statements or its change.

    The journal keeps the digest with the command's id, to detect a different request under the same id. An open
    transaction has the digest ``OPEN``; a command that was settled before it was committed has ``SETTLED``.

    Raises:
        UsageError: a text in the request is not Unicode.
    """
    if request.digest:
        return request.digest
    if request.change is not None:
        change = request.change
        given: list[object] = ["change", *(getattr(change, one.name) for one in fields(change))]
    elif len(request.statements) <= FEW_STATEMENTS and any(map(_has_long_value, request.statements)):
        return _hashed(_parts(request.statements))
    else:
        # No parameters (None) and an empty list of parameters have the same digest.
        given = ["statements", *((one.sql, one.params or None) for one in request.statements)]
    return _digest(given)


def _has_long_value(statement: Statement) -> bool:
    if type(statement.params) is list:
        for one in statement.params:
            if (type(one) is str or type(one) is bytes) and len(one) > LONG_BYTES:
                return True
    return False


def _parts(statements: Sequence[Statement]) -> Iterator[bytes]:
    """Yield the canonical encoding of statements in parts, without copying long values; None becomes null."""
    yield head(4, 1 + len(statements)) + cbor2.dumps("statements")
    for statement in statements:
        yield b"\x82" + cbor2.dumps(statement.sql)
        params = statement.params or None
        if type(params) is not list:
            yield cbor2.dumps(params, canonical=True)
            continue
        yield head(4, len(params))
        for one in params:
            if (type(one) is str or type(one) is bytes) and len(one) > LONG_BYTES:
                data = one if isinstance(one, bytes) else one.encode()
                yield head(2 if data is one else 3, len(data))
                yield data
            else:
                yield cbor2.dumps(one, canonical=True)


def _digest(given: list[object]) -> bytes:
    try:
        return sha256(cbor2.dumps(given, canonical=True)).digest()[:DIGEST_BYTES]
    except (cbor2.CBORError, ValueError) as error:
        raise _not_unicode(error) from error


def _hashed(parts: Iterable[bytes]) -> bytes:
    found = sha256()
    try:
        for part in parts:
            found.update(part)
        return found.digest()[:DIGEST_BYTES]
    except (cbor2.CBORError, ValueError) as error:
        raise _not_unicode(error) from error


def _not_unicode(error: Exception) -> UsageError:
    return UsageError(f"a text in the request is not Unicode: {error}; send it as bytes")


def part_digest(request: Request, number: int) -> bytes:
    """Return the digest of one statement of a request whose statements are transactions of their own."""
    return _digest(["part", digest_of(request), number])


OPEN, SETTLED = _digest(["open"]), _digest(["settled"])


@value
class Result:
    """The result of one statement."""

    columns: tuple[str, ...]  # names of the result's columns; empty for a statement that returns no rows
    rows: list[tuple[Any, ...]]  # the rows
    rowcount: int = -1  # number of rows changed by the statement itself; -1 for a statement that cannot change rows
    lastrowid: int | None = None  # rowid of the last row inserted by the transaction so far, or None
    blocks: Blocks | None = None  # at a node, rows already encoded by column, before those in ``rows``; else None


def as_part_of_trace(request: Request) -> Request:
    """Return a request with the current task's trace, unless the request has a trace already."""
    came = "" if request.trace else current_traceparent.get()
    return replace(request, trace=came) if came else request


def encode_results(results: Sequence[Result]) -> bytes:
    """Encode results, for the wire and for the journal."""
    if len(results) > MANY_RESULTS:
        head = cbor2.dumps([None] * len(results))[: -len(results)]
    else:
        head = bytes((0x80 + len(results),))
    return b"".join((head, *map(_encode_result, results)))


def _encode_result(one: Result) -> bytes:
    """Encode a result by hand: CBOR's encoder takes time for each array, and most arrays of a result are empty."""
    if not one.columns:
        columns = b"\x80"
    else:
        is_short = sum(map(len, one.columns)) <= NAMES_CHARACTERS_MAX
        columns = _encode_often(one.columns) if is_short else cbor2.dumps(one.columns)
    rows = cbor2.dumps(one.rows) if one.rows else b"\x80"
    last = b"\xf6" if one.lastrowid is None else cbor2.dumps(one.lastrowid)
    return b"".join((b"\x84", columns, rows, _encode_often(one.rowcount), last))


def head_of_read(columns: tuple[str, ...]) -> bytes:
    """Encode the results of one statement that reads, up to its rows."""
    return b"\x81\x84" + cbor2.dumps(columns)


def encode_read(head: bytes, rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Encode the results of one statement that reads, like ``encode_results``, given the head by ``head_of_read``."""
    return b"".join((head, cbor2.dumps(rows), _END_OF_READ))


_END_OF_READ = cbor2.dumps(-1) + cbor2.dumps(None)


_encode_often = lru_cache(2_000)(cbor2.dumps)  # for names of columns and numbers of rows, which often repeat


def _decoded(data: bytes) -> Any:
    """Decode results as tuples. Decoding to lists would take twice as long, because of their garbage collection."""
    found = cbor2.loads(data, immutable=True)
    for one in found:
        if len(one) == BY_COLUMN:
            return [*map(_by_row, found)]
        columns, rows, _rowcount, _lastrowid = one
        if type(columns) is not tuple or type(rows) is not tuple:
            raise TypeError("columns and rows should be lists")
        if not rows:
            continue
        if not {*map(type, rows)} <= _TUPLES:
            raise TypeError("columns and rows should be lists")
        if len(rows) == 1 and len(rows[0]) == 1 and type(rows[0][0]) not in _STORED:
            # The value of an operator's command has lists and maps in it, which callers may change.
            return [(tuple(columns), [*map(tuple, rows)], *rest) for columns, rows, *rest in cbor2.loads(data)]
    return found


def _by_row(one: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a decoded result with its rows as tuples; the given result may have its rows by column."""
    columns, rows, rowcount, lastrowid, *count = one
    if type(columns) is not tuple or type(rows) is not tuple:
        raise TypeError("columns and rows should be lists")
    if count:
        return columns, rows_of_blocks(rows, len(columns), *count), rowcount, lastrowid
    if not {*map(type, rows)} <= _TUPLES:
        raise TypeError("columns and rows should be lists")
    return one


BY_COLUMN = 5  # items of a result whose rows are by column: the four of other results, and the number of rows
_TUPLES = {tuple}
_STORED = {int, float, str, bytes, type(None)}  # types of the values of SQLite


def decode_results(data: bytes) -> list[Result]:
    """Decode the bytes of ``encode_results``.

    Raises:
        UsageError: the bytes are not results.
    """
    try:
        return [Result(columns, [*rows], rowcount, lastrowid) for columns, rows, rowcount, lastrowid in _decoded(data)]
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise UsageError(f"these {len(data)} bytes are not results: {error}") from error


NOTHING = encode_results(())
"""The results of a COMMIT that can never happen any more, because an empty transaction was committed in its place."""


@value
class Answer:
    """A node's answer to a successful request."""

    results: bytes  # encoded results, one for each statement
    token: Token  # the session's token after this request
    place: tuple[str, int] | None = None  # timeline and tick of the commit; None for a request that only read
    attempts: int = 1  # how often the node ran the request; more than 1 after conflicts
    more: bool = False  # in the answer of a stream, whether further rows may follow


@value
class Rows:
    """The result of one statement; iterate over it for its rows, which are tuples.

    Attributes:
        columns: names of the columns; empty for a statement that returns no rows.
        rows: all rows.
        rowcount: number of rows that the statement changed; -1 for a statement that cannot change rows.
        lastrowid: rowid of the row inserted last, or None.
        place: the transaction's place in the journal, as leader and tick; None if it only read.
        attempts: how often the node ran the transaction; more than 1 after conflicts.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    rowcount: int = -1
    lastrowid: int | None = None
    place: tuple[str, int] | None = None
    attempts: int = 1
    rest: Any = None  # for a cursor of the DB-API: the source of the rows after ``rows``; None if there are no more

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return True  # also without rows, although ``__len__`` is 0

    def one(self) -> tuple[Any, ...]:
        """Return the only row.

        Raises:
            UsageError: the result has no row, or several.
        """
        if len(self.rows) != 1:
            raise UsageError(f"one row was expected, but there are {len(self.rows)}")
        return self.rows[0]

    def value(self) -> Any:
        """Return the only value of the only row.

        Raises:
            UsageError: the result does not have exactly one row and one column.
        """
        row = self.one()
        if len(row) != 1:
            raise UsageError(f"one column was expected, but there are {len(row)}")
        return row[0]


def rows_of(answer: Answer, statements: int | None = None) -> list[Rows]:
    """Return an answer's results, one for each statement.

    Raises:
        ProtocolMismatchError: the bytes are not results, or their number is wrong.
    """
    data, place, attempts = answer.results, answer.place, answer.attempts
    try:
        found = [
            Rows(columns, [*rows], rowcount, lastrowid, place, attempts)
            for columns, rows, rowcount, lastrowid in _decoded(data)
        ]
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise ProtocolMismatchError(f"the node sent {len(data)} bytes that are not results: {error}") from error
    if statements is not None and len(found) != statements:
        raise ProtocolMismatchError(f"the node sent {len(found)} results for {statements} statements")
    return found


SHOWN_BITS_MAX = 256  # an integer of more bits is not written out in an error


def check_command(command: object) -> str:
    """Return the id of a command, after checking it.

    Raises:
        UsageError: the id is not a text, or is empty or too long.
    """
    if not isinstance(command, str) or not 0 < len(command) <= COMMAND_CHARACTERS_MAX:
        raise UsageError(f"a command's id should be a text of 1 to {COMMAND_CHARACTERS_MAX} characters")
    return command


def check_modes(read: object, isolation: object = SERIALIZABLE) -> None:
    """Check a read level and an isolation.

    Raises:
        UsageError: one of them is unknown.
    """
    if read not in READ_LEVELS:
        raise UsageError(f"there is no read level {read!r}; there is {', '.join(READ_LEVELS)}")
    if isolation not in ISOLATIONS:
        raise UsageError(f"there is no isolation {isolation!r}; there is {', '.join(ISOLATIONS)}")


def check_timeout(value: object) -> float:
    """Return a timeout in seconds, after checking it.

    Raises:
        UsageError: the value is not a positive number.
    """
    if type(value) is float and 0 < value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"a timeout should be a positive number of seconds, not {value!r}")
    return float(value)


def shown_integer(value: int) -> str:
    """Return an integer for an error's text; Python refuses to write one of more than 4,300 digits."""
    return str(value) if value.bit_length() <= SHOWN_BITS_MAX else f"an integer of {value.bit_length()} bits"


def check_params(params: object) -> Params:
    """Return checked parameters that SQLite can store: None, int of 64 bits, float, str, bytes.

    Truth values become 0 and 1, other byte buffers become bytes.

    Raises:
        UsageError: a parameter has another type.
    """
    if params is None:
        return None
    if type(params) is list or type(params) is tuple:  # the usual case; isinstance with an abstract class is slow
        return _values(params)
    if isinstance(params, Mapping):
        for name in params:
            if not isinstance(name, str):
                raise UsageError(f"a parameter's name should be a text, not {name!r}")
        return {name: _value(f":{name}", value) for name, value in params.items()}
    if isinstance(params, Sequence) and not isinstance(params, str | bytes | bytearray | memoryview):
        return _values(params)
    raise UsageError(f"parameters should be a list, a tuple or a map, not {type(params).__name__}; write (value,)")


def _values(params: Sequence[Any]) -> list[Any]:
    for one in params:  # inline, because most values need no conversion, and a call for each would be slow
        kind = type(one)
        if not (kind is str or kind is bytes or kind is float or one is None) and not (
            kind is int and -(1 << 63) <= one < 1 << 63
        ):
            return [_value(str(place), one) for place, one in enumerate(params, 1)]
    return list(params)


def _value(name: str, value: object) -> int | float | str | bytes | None:
    kind = type(value)
    if kind is str or value is None or kind is float or kind is bytes:
        return value  # type: ignore[return-value]
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise UsageError(
                f"parameter {name} is {shown_integer(value)}, but SQLite's integers have 64 bits; pass it as text"
            )
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise UsageError(
        f"parameter {name} is a {type(value).__name__}, which SQLite cannot store; "
        "pass None, int, float, str or bytes (a date as text, in ISO form)"
    )
