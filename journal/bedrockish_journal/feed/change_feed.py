"""The change feed: every committed transaction once, whole, in the order of (clock, leader), up to safe time.

No node can commit another transaction with a clock up to a node's safe time. So a reader that remembers the last
transaction it has read can continue at any node without missing or repeating a transaction. Pure: the feed makes the
SQL query and reads its rows.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bedrockish_journal.model.changes import Change, decode_changes, decode_statements
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.transaction import ROWS, SCHEMA, Transaction, decode_transaction

PAGE_BYTES = 4 << 20  # a page ends after the transaction that reaches this size
LAST_LEADER = "~"  # sorts after every name of a node
PLACE_PATTERN = r"[0-9]{1,19}\.[^+]{0,64}"  # clock and leader
CLUSTER_PATTERN = r"[0-9a-f]{16}"  # the id of a cluster
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The first row has the end of the pruned part of the journal and the safe time; the other rows are the page. A single
# statement reads all of it in one snapshot. A schema change is placed where it came into force, not where it was
# committed: between the transactions on the old schema and those on the new one. Bodies are read one after the other
# until the page is full: to read further ones only for their length would cost as much, because packed bodies are
# unpacked for that.
_NEXT = """
WITH safe(clock) AS (SELECT coalesce((SELECT value FROM bedrockish_meta WHERE key = 'safe'), 0)),
  removed AS (SELECT clock, origin FROM bedrockish_pruned ORDER BY clock DESC, origin DESC LIMIT 1),
  next AS (SELECT seq, clock AS at, origin, '' AS failure FROM bedrockish_journal AS j
      WHERE repeat = 0 AND (clock, origin) > (?1, ?2) AND clock <= (SELECT clock FROM safe)
        AND NOT EXISTS (SELECT 1 FROM bedrockish_meta WHERE key = 'void:' || j.origin || '-' || printf('%x', j.clock))
        AND (kind <> 'schema' OR NOT EXISTS (
          SELECT 1 FROM bedrockish_schema AS s WHERE s.clock = j.clock AND s.leader = j.origin))
    UNION ALL SELECT j.seq, s.activates, s.leader, s.failure
      FROM bedrockish_schema AS s LEFT JOIN bedrockish_journal AS j
        ON j.clock = s.clock AND j.origin = s.leader AND j.repeat = 0
      WHERE (s.activates, s.leader) > (?1, ?2) AND s.activates <= (SELECT clock FROM safe)
    ORDER BY 2, 3 LIMIT ?3)"""
_HEAD = """SELECT 0, coalesce((SELECT clock FROM removed), 0), coalesce((SELECT origin FROM removed), ''), '',
  (SELECT clock FROM safe), x'', ''"""
PAGE = f"""{_NEXT},
  numbered AS MATERIALIZED (SELECT row_number() OVER (ORDER BY at, origin) AS number, * FROM next),
  page(number, clock, origin, leader, tick, body, failure, size) AS (
    SELECT 0, 0, '', '', 0, x'', '', 0
    UNION ALL SELECT u.number, u.at, u.origin, j.leader, j.tick, j.body, u.failure, size + coalesce(length(j.body), 0)
      FROM page JOIN numbered AS u ON u.number = page.number + 1
        LEFT JOIN bedrockish_journal AS j ON j.seq = u.seq WHERE size < ?4)
{_HEAD}
UNION ALL SELECT 1, clock, origin, leader, tick, body, failure FROM page WHERE number > 0
ORDER BY 1, 2, 3
"""
# For a transaction too long for PAGE, which copies a body dozens of times: the query of its place, and of its body.
PLACE = f"""{_NEXT}
{_HEAD}
UNION ALL SELECT 1, at, next.origin, j.leader, j.tick, iif(j.seq IS NULL, NULL, x''), failure
  FROM next LEFT JOIN bedrockish_journal AS j ON j.seq = next.seq
ORDER BY 1
"""
BODY = "SELECT body FROM bedrockish_journal WHERE leader = ? AND tick = ?"


class CursorError(JournalError):
    """Raised when a text is not a cursor of a change feed. Nothing was read; pass a cursor from a feed, or none."""


class FeedUnreadableError(JournalError):
    """Raised when the next entry of a feed cannot be decoded."""


class FeedPrunedError(JournalError):
    """Raised when the node no longer has the entries after a cursor, because its journal's beginning was removed.

    Nothing was skipped. Continue at a node that still has the entries, or copy the tables and continue from the copy:
    ``bedrockish export`` prints the cursor of its copy. ``bedrockish journal hold`` keeps entries until a consumer has
    read them.
    """


@dataclass(frozen=True, slots=True, order=True)
class FeedCursor:
    """A place in the feed, right after a transaction. A cursor is valid at every node.

    Attributes:
        clock: the transaction's clock.
        leader: the leader that began the transaction.
        seen: the places of later transactions that the reader has already, because it began with a copy that had them.
        cluster: the id of the cluster; empty in a cursor of an earlier release.
    """

    clock: int = 0
    leader: str = ""
    seen: "tuple[FeedCursor, ...]" = field(default=(), compare=False)
    cluster: str = field(default="", compare=False)

    def __str__(self) -> str:
        prefix = f"{self.cluster}:" if self.cluster else ""
        return prefix + "+".join([f"{self.clock}.{self.leader}", *map(str, self.seen)])


def cursor_of_copy(safe: int, above: Iterable[tuple[int, str]], cluster: str = "") -> FeedCursor:
    """Return the cursor with which the reader of a copy of a node's tables continues in the feed.

    Args:
        safe: the safe time of the copy, which has every commit up to it.
        above: clock and leader of the later commits that the copy has.
    """
    return FeedCursor(safe, LAST_LEADER, tuple(sorted(FeedCursor(*one) for one in above)), cluster)


def parse_cursor(text: str | None) -> FeedCursor:
    """Return the cursor of a text; None or an empty text is the beginning of the feed.

    Raises:
        CursorError: the text is not a cursor.
    """
    if not text:
        return FeedCursor()
    cluster, colon, place = text.partition(":")
    if colon and re.fullmatch(CLUSTER_PATTERN, cluster) is not None and place:
        found = parse_cursor(place)
        if not found.cluster:
            return replace(found, cluster=cluster)
    text, *seen = text.split("+")
    if seen:
        return replace(parse_cursor(text), seen=tuple(parse_cursor(one or "?") for one in seen))
    clock, _, leader = text.partition(".")
    if re.fullmatch(PLACE_PATTERN, text) is None or int(clock) >= 1 << 63:
        raise CursorError(f"{text!r} is not a cursor such as 7529850000000000000.A; pass one that a feed gave")
    return FeedCursor(int(clock), leader)


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction of the feed."""

    cursor: FeedCursor  # the place right after the transaction, from which a reader continues
    # The transaction's hybrid clock; for a schema change, the clock from which on it is in force. Clocks never decrease
    # along the feed.
    clock: int
    leader: str  # the leader that began the transaction
    place: tuple[str, int]  # the transaction's timeline and tick in the journal
    command: str  # the client's id of the command
    joined: tuple[str, ...]  # the ids of the commands that were executed after ``command`` in the same transaction
    kind: str  # ``rows``, ``schema`` or ``members``
    # The changes of rows, in the order in which they happened, with the whole row before and after.
    changes: tuple[Change, ...]
    statements: tuple[str, ...]  # the statements of a schema change; empty if the change failed on the data
    after: dict[str, int]  # the vector that the transaction had seen
    # The id of the command that made each of ``changes``; None if several commands share the transaction and their
    # shares are unknown (see ``Transaction.shares``).
    makers: tuple[str | None, ...] = ()
    # The users of ``command`` and of each of ``joined``; None for a client that did not have to authenticate.
    users: tuple[str | None, ...] = ()

    @property
    def whose(self) -> dict[str | None, str | None]:
        """The user of each command of the transaction."""
        return dict(zip((self.command, *self.joined), self.users, strict=False))

    @property
    def at(self) -> datetime:
        """The time of the transaction's clock, in UTC."""
        return EPOCH + timedelta(milliseconds=milliseconds(self.clock))


class Feed:
    """A reader of the feed, page by page.

    Args:
        after: the cursor to continue from; None for the beginning.
        tables: the tables to follow; transactions that changed only rows of other tables are left out.
    """

    def __init__(self, after: str | None = None, tables: Collection[str] | None = None) -> None:
        self.cursor = parse_cursor(after)  # the place after the last transaction that was read, or left out
        self.cluster = self.cursor.cluster  # the id of the cluster, which is put into cursors; empty until it is set
        self.safe = 0  # the node's safe time, up to which the feed is complete
        self.is_last = False  # whether the last page ended at the safe time
        self._limit = 0
        self._tables = None if tables is None else {table.lower() for table in tables}

    def set_cluster(self, cluster: str) -> None:
        """Set the id of the cluster, which later cursors name."""
        if cluster != self.cluster:
            self.cluster, self.cursor = cluster, replace(self.cursor, cluster=cluster)

    def question(self, limit: int) -> tuple[str, tuple[Any, ...]]:
        """Return the query and its parameters for the next transactions, at most ``limit``."""
        self._limit = limit
        return PAGE, (self.cursor.clock, self.cursor.leader, limit, PAGE_BYTES)

    def question_of_one(self) -> tuple[str, tuple[Any, ...]]:
        """Return the query for the next transaction without its body, for a page that is too large for one answer."""
        self._limit = 1
        return PLACE, (self.cursor.clock, self.cursor.leader, 1)

    def question_of_body(self, rows: Sequence[tuple[Any, ...]]) -> tuple[str, tuple[Any, ...]] | None:
        """Return the query for the body that an answer to ``question_of_one`` leaves out, else None."""
        return (BODY, tuple(rows[1][3:5])) if len(rows) > 1 and rows[1][5] is not None else None

    def filled(self, rows: Sequence[tuple[Any, ...]], bodies: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the answer to ``question_of_one`` with the body from ``question_of_body``, as rows for ``take``."""
        body = bodies[0][0] if bodies else None  # None: the entry was removed in the meantime
        return [rows[0], (*rows[1][:5], body, *rows[1][6:])]

    def take(self, rows: Sequence[tuple[Any, ...]]) -> list[Committed]:
        """Return the transactions of a page, and move the cursor after the page, including transactions left out.

        Raises:
            FeedPrunedError: some of the next transactions were removed; the cursor does not move.
            FeedUnreadableError: the next transaction cannot be decoded; the cursor does not move.
        """
        _, clock, leader, _, self.safe, *_ = rows[0]
        removed = FeedCursor(clock, leader)
        # A row without a body is a schema change that came into force after the cursor, but whose entry was removed.
        if self.cursor < removed or any(row[5] is None for row in rows):
            raise FeedPrunedError(
                f"the journal of this node begins after {removed}, and the feed would continue after "
                f"{self.cursor if self.cursor.clock else 'the beginning'}: the entries between were removed to make "
                "room; ask a node that still has them, or copy the tables with 'bedrockish export' and continue after "
                f"the cursor that it prints; to read only the remaining entries, continue after {removed}"
            )
        self.is_last = len(rows) - 1 < self._limit and sum(len(row[5]) for row in rows) < PAGE_BYTES
        taken: list[Committed] = []
        for _, clock, origin, leader, tick, body, failure in rows[1:]:
            here = FeedCursor(clock, origin)
            assert here > self.cursor, "a feed goes forward"
            is_known = here in self.cursor.seen
            cursor = replace(here, cluster=self.cluster, seen=tuple(one for one in self.cursor.seen if one > here))
            found = None
            if not is_known:
                try:
                    found = self._filter(committed(cursor, (leader, tick), decode_transaction(body), failure))
                except EntryMalformedError as error:
                    if taken:  # return the transactions before; the next page begins with the malformed one
                        self.is_last = False
                        break
                    raise FeedUnreadableError(
                        f"the journal of this node cannot be read at {here} ({leader}{tick}), after cursor "
                        f"{self.cursor if self.cursor.clock else 'the beginning'}: {error}; ask another node, and "
                        "compare this one's journal with 'bedrockish journal verify'"
                    ) from error
            self.cursor = cursor
            if found is not None:
                taken.append(found)
        return taken

    def _filter(self, found: Committed) -> Committed | None:
        if self._tables is None or found.kind != ROWS:
            return found
        pairs = zip(found.changes, found.makers, strict=True)
        kept = [pair for pair in pairs if pair[0].table.lower() in self._tables]
        if not kept:
            return None
        return replace(found, changes=tuple(change for change, _ in kept), makers=tuple(maker for _, maker in kept))


def committed(cursor: FeedCursor, place: tuple[str, int], transaction: Transaction, failure: str = "") -> Committed:
    """Return, in the form of the feed, the transaction of an entry of the journal.

    ``failure`` is the reason why the data forbade a schema change.
    """
    kind = transaction.kind
    changes = tuple(decode_changes(transaction.changes)) if kind == ROWS else ()
    return Committed(
        cursor,
        cursor.clock,
        cursor.leader,
        place,
        transaction.command,
        transaction.commands[1:],
        kind,
        changes,
        tuple(decode_statements(transaction.changes)) if kind == SCHEMA and not failure else (),
        dict(transaction.base),
        transaction.makers(len(changes)),
        tuple(transaction.user_of(command) for command in transaction.commands),
    )
