"""``bedrockish_changes``: the journal as a table of row changes, for SQL.

The table is an eponymous virtual table: it exists on every connection of a node without CREATE, and in no schema.
Bounds on ``clock`` and equalities on ``transaction_id`` and ``table_name`` are looked up by the journal's own indexes
or tested before an entry is decoded; SQLite tests all other conditions by itself.
"""

import json
from collections.abc import Generator, Sequence
from itertools import repeat
from typing import Any

import apsw

from bedrockish.engine.statements.clock_functions import Holder, clock_time, register
from bedrockish.engine.statements.users_vtab import ReadTable, give_table, give_users
from bedrockish.errors import UnavailableError
from bedrockish_journal.feed.change_feed import Committed, FeedCursor, committed
from bedrockish_journal.feed.json_form import plain, record
from bedrockish_journal.model.changes import DELETE, Change, Value
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import decode_transaction
from bedrockish_journal.storage.table_layout import find_table

NAME = "bedrockish_changes"
COLUMNS = {
    "clock": "INTEGER",
    "leader": "TEXT",
    "seq": "INTEGER",
    "transaction_id": "TEXT",
    "at": "TEXT",
    "timeline": "TEXT",
    "tick": "INTEGER",
    "kind": "TEXT",
    "op": "TEXT",
    "table_name": "TEXT",
    "row_key": "",
    "row_before": "TEXT",
    "row_after": "TEXT",
    "statement": "TEXT",
    "joined": "TEXT",
    "user_name": "TEXT",
}
SCHEMA = f"CREATE TABLE {NAME}({', '.join(f'{name} {kind}'.strip() for name, kind in COLUMNS.items())})"
_NAMES = tuple(COLUMNS)
_CLOCK, _COMMAND, _TABLE = (_NAMES.index(name) for name in ("clock", "transaction_id", "table_name"))
_ORDER = tuple(_NAMES.index(name) for name in ("clock", "leader", "seq"))
_OPS = {
    apsw.SQLITE_INDEX_CONSTRAINT_EQ: "=",
    apsw.SQLITE_INDEX_CONSTRAINT_GT: ">",
    apsw.SQLITE_INDEX_CONSTRAINT_GE: ">=",
    apsw.SQLITE_INDEX_CONSTRAINT_LT: "<",
    apsw.SQLITE_INDEX_CONSTRAINT_LE: "<=",
}
# The test for a table looks for its name in the bytes of a transaction, without decoding them.
_TESTS = {
    _CLOCK: "{clock} {op} ?{number}",
    _COMMAND: "(j.command = ?{number} OR j.seq IN (SELECT seq FROM bedrockish_joined WHERE command = ?{number}))",
    _TABLE: "j.kind = 'rows' AND instr(j.body, CAST(?{number} AS BLOB)) > 0",
}
_COSTS = {_CLOCK: 0.3, _COMMAND: 1e-6, _TABLE: 0.2}
# A schema change is listed at the clock at which it came into force, as in the change feed.
_QUERY = """
SELECT j.clock, j.origin, j.leader, j.tick, j.body, '' FROM bedrockish_journal AS j
WHERE j.repeat = 0 AND (j.kind <> 'schema' OR NOT EXISTS (
  SELECT 1 FROM bedrockish_schema AS s WHERE s.clock = j.clock AND s.leader = j.origin))
  AND NOT EXISTS (SELECT 1 FROM bedrockish_meta WHERE key = 'void:' || j.origin || '-' || printf('%x', j.clock)){}
UNION ALL SELECT s.activates, s.leader, j.leader, j.tick, j.body, s.failure
FROM bedrockish_schema AS s JOIN bedrockish_journal AS j ON j.clock = s.clock AND j.origin = s.leader
WHERE j.repeat = 0 AND s.state <> 'scheduled'{}
ORDER BY 1, 2
"""


def give_functions(db: apsw.Connection, holder: Holder) -> None:
    """Register the clock's functions and ``bedrockish_changes`` on a connection."""
    register(db, holder)
    give_users(db)
    give_table(db, NAME, SCHEMA, _Changes)


class _Changes(ReadTable):
    """The table of row changes: each of its scans is a query on the journal."""

    def BestIndexObject(self, index: apsw.IndexInfo) -> bool:  # noqa: N802
        """Choose the conditions that the query on the journal tests; return True."""
        tests: list[str] = []
        tables: list[int] = []
        cost = 1e7
        for place in range(index.nConstraint):
            column, op = index.get_aConstraint_iColumn(place), index.get_aConstraint_op(place)
            if not index.get_aConstraint_usable(place) or op not in _OPS or column not in _TESTS:
                continue
            if column != _CLOCK and (op != apsw.SQLITE_INDEX_CONSTRAINT_EQ or not _is_binary(index, place)):
                continue
            tests.append(_TESTS[column].format(clock="{clock}", op=_OPS[op], number=len(tests) + 1))
            index.set_aConstraintUsage_argvIndex(place, len(tests))
            if column == _TABLE:
                tables.append(len(tests) - 1)
            cost *= _COSTS[column]
        wanted = [
            (index.get_aOrderBy_iColumn(place), index.get_aOrderBy_desc(place)) for place in range(index.nOrderBy)
        ]
        index.orderByConsumed = wanted == [(column, False) for column in _ORDER[: len(wanted)]]
        index.idxStr = json.dumps([tests, tables])
        index.estimatedCost, index.estimatedRows = cost, max(1, int(cost))
        return True

    def rows(self, chosen: str, values: Sequence[Any]) -> Generator[tuple[Value, ...]]:
        tests, tables = json.loads(chosen)
        only = None
        for place in tables:
            only = values[place] if only is None or only == values[place] else ()
        text = "".join(f" AND {test}" for test in tests)
        query = _QUERY.format(text.format(clock="j.clock"), text.format(clock="s.activates"))
        entries = self._db.execute(query, tuple(values))
        keys: dict[str, tuple[str, ...]] = {}
        row: Any
        try:
            for row in entries:
                clock, origin, leader, tick, body, failure = row
                try:
                    decoded = decode_transaction(body)
                except EntryMalformedError as error:
                    raise UnavailableError(
                        f"{leader}{tick} of this node's journal cannot be read ({error}); ask another node, and run "
                        "'bedrockish journal verify' on the file of this node"
                    ) from error
                transaction = committed(FeedCursor(clock, origin), (leader, tick), decoded, failure)
                head = (clock, origin)
                middle = (clock_time(clock), leader, tick, transaction.kind)
                makers = transaction.makers or repeat(None)
                whose = transaction.whose
                joined = json.dumps(transaction.joined, ensure_ascii=False) if transaction.joined else None
                for seq, (change, maker) in enumerate(zip(_parts(transaction), makers, strict=False)):
                    command = maker or transaction.command
                    last = (joined, whose.get(maker if transaction.joined else command))
                    if isinstance(change, str) or change is None:
                        if only is None:
                            yield (*head, seq, command, *middle, None, None, None, None, None, change, *last)
                    elif only is None or change.table == only:
                        images = (_json(change, change.before), _json(change, change.after))
                        key = self._key(change, keys)
                        yield (*head, seq, command, *middle, change.op, change.table, key, *images, None, *last)
        finally:
            entries.close(True)

    def _key(self, change: Change, keys: dict[str, tuple[str, ...]]) -> Value:
        """Return the value of the row's key after the change (a DELETE: before it); several values as JSON."""
        if change.table not in keys:
            table = find_table(self._db, change.table)
            keys[change.table] = table.primary if table is not None else ()
        primary = keys[change.table]
        row = change.before if change.op == DELETE else change.after
        values = [value for name, value in zip(change.columns, row or (), strict=True) if name in primary]
        if len(values) == 1 and len(primary) == 1:
            return values[0]
        rowid = change.rowid if change.op == DELETE else change.rowid_after
        return rowid if rowid is not None else json.dumps([plain(value) for value in values])


def _is_binary(index: apsw.IndexInfo, place: int) -> bool:
    return index.get_aConstraint_collation(place).upper() == "BINARY"


def _parts(transaction: Committed) -> Sequence[Change | str | None]:
    """Return the changes of a transaction, or its statements.

    Return one None for a change of the members, or for a change of the schema that failed on the data.
    """
    return transaction.changes or transaction.statements or (() if transaction.kind == "rows" else (None,))


def _json(change: Change, row: tuple[Value, ...] | None) -> str | None:
    found = record(change, row)
    return None if found is None else json.dumps(found, ensure_ascii=False)
