"""Allocates ids for rows that come without one, so that no two nodes, and no two clients of a node, use the same id.

Each node has a stripe: it gives only ids that leave its own remainder when they are divided by the number of stripes. A
node also remembers the highest id that it has given for each table, even if that transaction failed, because other
transactions may be in flight. An id is always above the highest id that this node sees in the table.

While only one of two nodes knows of a new member, both may use the same stripe. That is harmless: an id is a written
key, and of two transactions that write the same key, one is executed again.
"""

import weakref
from collections.abc import Iterable, Set
from typing import Any

import apsw

from bedrockish.access_sets.key_encoding import apply_affinity
from bedrockish.access_sets.table_layout import CapturedTable, Tables
from bedrockish.core.protocol.records import Vote
from bedrockish.engine.sqlite.bind import INT_MAX
from bedrockish.engine.statements.insert_rewriter import FUNCTION
from bedrockish.errors import ConstraintError, UsageError
from bedrockish_journal.model.changes import Value, decode_changes
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.storage.table_layout import quote

STRIPES_MIN = 16  # the least number of stripes: with up to 16 nodes, the number does not change
LEASE_MAX = 1_000  # ids that a program gets at a time
BACK_MAX = 1_000_000  # the most ids of a table that programs have returned and no row has yet


class IdsNeededError(UsageError):
    """Raised internally when a statement needs new row ids, and those leased to the program are used up.

    ``details["table"]`` is the table, and the new ids must be greater than ``details["above"]``.
    """

    code = "ids_needed"


def stripe(node: str, members: Iterable[str]) -> tuple[int, int]:
    """Return the number of stripes, a power of two, and a node's stripe: its number, from 1, among all names in order.

    >>> stripe("B", ["C", "A", "B"])
    (16, 2)
    """
    names = sorted({*members, node})
    stripes = STRIPES_MIN
    while stripes < len(names):
        stripes *= 2
    return stripes, names.index(node) + 1


class AutoIds:
    """The allocator of one node's ids, registered on its connections."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}
        self._back: dict[str, dict[int, None]] = {}  # returned leased ids; the next id to assign is the last
        self._seen: dict[str, int] = {}
        self._tables: dict[str, CapturedTable] = {}
        self._queries: dict[str, str] = {}
        self._sequences: Set[str] = frozenset()
        self._stripes, self._own = stripe("", ())
        self._home: AutoIds | None = None

    def twin(self) -> "AutoIds":
        """Return an allocator for another thread's connection; each of the two knows the ids that the other has given.

        They share no lock: if both give the same id at the same instant, one of the transactions is executed again.
        """
        other = AutoIds()
        other._home, other._highest, other._back = self, self._highest, self._back
        return other

    def register(self, db: apsw.Connection) -> None:
        """Let a connection's rewritten statements call the function for ids; triggers and DEFAULTs may not call it."""
        own = weakref.proxy(db)  # SQLite keeps the function, which must not keep the connection

        def given(*arguments: Value) -> Value:
            table = arguments[0]
            assert isinstance(table, str)
            if len(arguments) == 1 or arguments[1] is None:
                return self._next(own, table)
            self._reserve(own, table, arguments[1])
            return arguments[1]

        db.create_scalar_function(FUNCTION, given, flags=apsw.SQLITE_DIRECTONLY)

    def use(self, tables: Tables) -> None:
        """Use the tables of a new schema from now on."""
        self._tables = tables.by_name
        self._queries.clear()
        self._sequences = tables.sequences
        for name in self._highest.keys() - self._tables.keys() if self._home is None else ():
            del self._highest[name]

    def use_members(self, node: str, membership: Membership) -> None:
        """Use the members of the cluster from now on."""
        self._stripes, self._own = stripe(node, membership.nodes)

    def note(self, table: str, rowid: int | None) -> None:
        """Assign only ids above this one from now on: a transaction that may still be committed has used it."""
        if rowid is not None:
            self._highest[table] = max(rowid, self._highest.get(table, rowid))

    def note_votes(self, votes: Iterable[Vote]) -> None:
        """Assign only ids above those in proposed transactions, because any of these may still be decided."""
        for vote in votes:
            if vote.transaction is not None and vote.transaction.kind == ROWS:
                for change in decode_changes(vote.transaction.changes):
                    self.note(change.table, change.rowid_after)

    def begin_statement(self) -> None:
        """Start a statement: forget the highest ids seen, because the tables may have changed since the last one."""
        self._seen.clear()
        if self._home is not None:
            self._stripes, self._own = self._home._stripes, self._home._own

    def lease(self, db: apsw.Connection, table: str, above: int, count: int) -> list[int]:
        """Return ids of a table that no other transaction gets, greater than ``above`` and in rising order.

        Return ``count`` ids, or fewer at the end of all ids.

        Raises:
            UsageError: the table does not exist, or has no ids.
        """
        self.begin_statement()
        known = self._tables.get(table)
        if known is None or known.rowid is None:
            raise UsageError(f"table {table!r:.80} has no ids to lease; give the id in the statement")
        above = max(above, self._in_table(db, table), self._highest.get(table, above))
        first = above + 1 + (self._own - above - 1) % self._stripes
        ids = [one for one in range(first, first + count * self._stripes, self._stripes) if one <= INT_MAX]
        if ids:
            self._highest[table] = ids[-1]
        return ids

    def take_back(self, table: str, ids: list[int]) -> None:
        """Take leased, unused ids back; its next rows get them, in this order, before those of earlier calls.

        Ids that this node did not lease are ignored: a client could return the greatest possible id, after which each
        INSERT into the table would fail.
        """
        highest = self._highest.get(table, 0)
        leased = [one for one in ids if 0 < one <= highest and (one - self._own) % self._stripes == 0]
        back = self._back.setdefault(table, {}) if leased else {}
        for one in reversed(leased):
            back.pop(one, None)  # a repeated call brings each id again
            back[one] = None
        if len(back) > BACK_MAX:
            del self._back[table]

    def used_up(self, db: apsw.Connection) -> ConstraintError | None:
        """Return the error for a table whose ids are used up, else None. SQLite would report a full disk."""
        row: Any = None
        try:
            if self._sequences:
                row = db.execute("SELECT name FROM main.sqlite_sequence WHERE seq = ?", (INT_MAX,)).fetchone()
            if row is None and db.execute("SELECT 1 FROM temp.sqlite_schema WHERE name = 'sqlite_sequence'").fetchone():
                row = db.execute("SELECT name FROM temp.sqlite_sequence WHERE seq = ?", (INT_MAX,)).fetchone()
        except (apsw.FullError, apsw.IOError):  # the disk is full indeed, and SQLite cannot write its temporary file
            return None
        except apsw.SQLError:  # SQLite has rolled back the first definition with AUTOINCREMENT
            return None
        return None if row is None else error_of_used_up(row[0])

    def _next(self, db: apsw.Connection, table: str) -> int | None:
        seen = self._in_table(db, table)
        back = self._back.get(table)
        while back:
            rowid, _ = back.popitem()
            if rowid > seen:
                self._seen[table] = rowid  # the ids of a statement rise, as SQLAlchemy expects
                return rowid
        above = max(seen, self._highest.get(table, seen))
        rowid = above + 1 + (self._own - above - 1) % self._stripes
        if rowid <= INT_MAX:
            self._highest[table] = rowid
            return rowid
        if table in self._sequences:
            raise error_of_used_up(table)
        return None  # the greatest possible id is in use: SQLite itself looks for a free one

    def _in_table(self, db: apsw.Connection, table: str) -> int:
        """Return the highest id in the table, including the ids that this statement has given so far."""
        seen = self._seen.get(table)
        if seen is not None:
            return seen
        query = self._queries.get(table)
        if query is None:
            rowid, own = self._tables[table].rowid, self._tables[table].own.row_table
            assert rowid
            if own:
                rowid = "rowid"
            query = self._queries[table] = f"SELECT max({rowid}) FROM {quote(own or table)}"
        found: Any = db.execute(query).fetchone()
        highest: int | None = found[0]
        if table in self._sequences:
            found = db.execute("SELECT seq FROM main.sqlite_sequence WHERE name = ?", (table,)).fetchone()
            if found is not None and type(found[0]) is int:
                highest = found[0] if highest is None else max(highest, found[0])
        self._seen[table] = highest = 0 if highest is None else highest
        return highest

    def _reserve(self, db: apsw.Connection, table: str, value: Value) -> None:
        """Record an id that the client's statement gives, so that no later row of the statement gets this id."""
        rowid = apply_affinity(value, "D")
        if type(rowid) is int:  # SQLite refuses any other id
            self._seen[table] = max(self._in_table(db, table), rowid)


def error_of_used_up(table: str) -> ConstraintError:
    """Return the error for a row without an id in a table whose ids are used up."""
    return ConstraintError(f"table {table} is AUTOINCREMENT and its ids are used up; give an id", table=table)
