"""What a client may ask of a node, and what it is answered: plain values, encoded the same way on the wire and in the
journal (where results are kept, so that a retried command gets its first answer).
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import cbor2

from bedrockish.common.levels import LEVEL
from bedrockish.errors import UsageError
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.value import value
from bedrockish_journal.model.vector import Vector, check

STALE, SESSION, STRICT = "stale", "session", "strict"
READ_LEVELS = (STALE, SESSION, STRICT)
SERIALIZABLE, SNAPSHOT = "serializable", "snapshot"
ISOLATIONS = (SERIALIZABLE, SNAPSHOT)

ADD, PROMOTE, DEMOTE, REMOVE, ADDRESS, REPLACE = "add", "promote", "demote", "remove", "address", "replace"
RAISE = "level"
USER_ADD, USER_GRANT, USER_REVOKE, USER_PASSWORD, USER_REMOVE = USER_ACTIONS = (
    "user add",
    "user grant",
    "user revoke",
    "user passwd",
    "user remove",
)
MEMBER_ACTIONS = (ADD, PROMOTE, DEMOTE, REMOVE, ADDRESS, REPLACE, RAISE, *USER_ACTIONS)

Params = Sequence[Any] | Mapping[str, Any] | None


@value
class Token:
    """What a session has seen: carried by the client, opaque to it; any node that has seen it too can serve it."""

    vector: Vector = field(default_factory=dict)
    clock: int = 0

    def encode(self) -> bytes:
        """Return the token as bytes to keep or pass on."""
        return cbor2.dumps([dict(self.vector), self.clock])


def decode_token(data: bytes | None) -> Token:
    """Read a token; None is the empty one.

    Raises:
        UsageError: the bytes are not a token.
    """
    if not data:
        return Token()
    try:
        vector, clock = cbor2.loads(data)
        if type(clock) is not int or not 0 <= clock < 1 << 64:
            raise UsageError(f"a session token cannot have the clock {clock!r}")
        return Token(check(vector), clock)
    except (cbor2.CBORError, ValueError, TypeError, EntryMalformedError) as error:
        raise UsageError(f"this is not a session token: {error}") from error


@value
class Statement:
    """One SQL statement and its parameters, by position or by name."""

    sql: str
    params: Params = None


@value
class MemberChange:
    """A change of the cluster's members, or of its users.

    Attributes:
        action: ``add`` (as a learner), ``promote`` (to a voter), ``demote``, ``remove``, ``address``, ``replace``, or
            ``level`` (raise the cluster's release level to what all members have told); or one of ``USER_ACTIONS``.
        node: whom it is about: a member, or a user.
        address: where it listens (add, address), or where its successor does (replace).
        successor: name of the node that takes its place (replace).
        store: id of the file of the node that is added; empty if that is not known yet.
        level: the release level of the node that is added.
        force: make the change even if the voters that are left cannot decide anything until others come back, or no
            admin is left.
        role: a user's (add, grant, revoke).
        secret: the hash of a user's password (add, passwd).
        table: the one for which the role is (grant, revoke); empty: the whole database.
    """

    action: str
    node: str
    address: str = ""
    successor: str = ""
    store: str = ""
    force: bool = False
    level: int = LEVEL
    role: str = ""
    secret: str = field(default="", repr=False)
    table: str = ""


@value
class Named:
    """A call of a registered command.

    Attributes:
        name: of the command.
        args: plain values, by position or by name.
    """

    name: str
    args: Sequence[Any] | Mapping[str, Any] = ()


@value
class Request:
    """One command: statements that run as one transaction.

    Attributes:
        command: unique id chosen by the client; the same id is applied once at most, on all nodes together.
        statements: what to run, in order.
        read: read level, used when no statement writes.
        isolation: ``serializable`` or ``snapshot``.
        token: what the client has seen.
        timeout_s: how long the client is willing to wait, in seconds.
        change: a change of the members, instead of statements.
        read_only: refuse the request if it writes.
        longest_s: how long it may take in all if it is still being executed after ``timeout_s``; 0: no longer.
        call: a registered command to be called by name, instead of statements.
        user: who asks, as the node found at its door; empty if nobody has to say. No client can set it.
    """

    command: str
    statements: tuple[Statement, ...]
    read: str = SESSION
    isolation: str = SERIALIZABLE
    token: Token = field(default_factory=Token)
    timeout_s: float = 30.0
    change: MemberChange | None = None
    read_only: bool = False
    longest_s: float = 0.0
    call: Named | None = None
    user: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The SQL of its statements."""
        return tuple(statement.sql for statement in self.statements)


@value
class Result:
    """What one statement gave.

    Attributes:
        columns: names of the result's columns; empty for a statement that gives no rows.
        rows: the rows.
        rowcount: rows changed by the statement itself, -1 for one that changes none by nature.
        lastrowid: rowid of the last row inserted by the transaction so far, or None.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    rowcount: int = -1
    lastrowid: int | None = None


def encode_results(results: Sequence[Result]) -> bytes:
    """Return results as the bytes that travel and are kept."""
    if len(results) == 1 and not results[0].columns and not results[0].rows:
        return _encode_counts(results[0].rowcount, results[0].lastrowid)
    return cbor2.dumps([[r.columns, r.rows, r.rowcount, r.lastrowid] for r in results])


@lru_cache(1_000)
def _encode_counts(rowcount: int, lastrowid: int | None) -> bytes:
    """Return the bytes of what one statement gave that has no rows, ``[[[], [], rowcount, lastrowid]]``.

    Encoding takes its time by the array, and these are always the same: those of most UPDATEs to the end.
    """
    return b"\x81\x84\x80\x80" + cbor2.dumps((rowcount, lastrowid))[1:]


def decode_results(data: bytes) -> list[Result]:
    """Read what ``encode_results`` wrote.

    Raises:
        UsageError: the bytes are not results.
    """
    try:
        return [
            Result(tuple(columns), [tuple(row) for row in rows], rowcount, lastrowid)
            for columns, rows, rowcount, lastrowid in cbor2.loads(data)
        ]
    except (cbor2.CBORError, ValueError, TypeError) as error:
        raise UsageError(f"these {len(data)} bytes are not results: {error}") from error


NOTHING = encode_results(())
"""The results of an open transaction's COMMIT that can never happen any more: an empty one has taken its place."""


@value
class Answer:
    """What a node answers to a request that succeeded.

    Attributes:
        results: encoded results, one for each statement.
        token: what the session has seen now.
        place: timeline and tick of the commit; None for a request that only read.
        attempts: how often the node ran the request; above 1, it met conflicts.
        more: of a stream: there may be more rows, and they can be fetched.
    """

    results: bytes
    token: Token
    place: tuple[str, int] | None = None
    attempts: int = 1
    more: bool = False
