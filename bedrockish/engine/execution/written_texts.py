"""Finds values that cannot be replicated among the rows that a statement of a schema change writes: texts that are not
UTF-8, and values of another type than that of their auxiliary column of vec0.

The rows of other transactions are checked where their changes are captured; a schema change is recorded as statements.
"""

import apsw

from bedrockish.access_sets.change_capture import mistyped
from bedrockish_journal.storage.table_layout import find_table, quote
from bedrockish_journal.storage.virtual_tables import virtual_tables

_HOOK = "written texts"


class WrittenTexts:
    """A context manager that examines the rows that are written on a connection."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._newest = 0  # the rowid of the newest definition when the statement began
        self._unread: dict[str, set[int]] = {}  # rowids of tables with VIRTUAL columns, whose rows the hook cannot show
        self.table = ""  # a table with a new text that is not UTF-8, or empty
        self._written: set[str] = set()  # the tables with a new or changed row, in lower case

    def __enter__(self) -> None:
        found = self._db.execute("SELECT coalesce(max(rowid), 0) FROM sqlite_schema", can_cache=False).fetchone()
        assert found is not None
        self._newest = found[0]
        self._db.preupdate_hook(self._changed, id=_HOOK)

    def __exit__(self, *_: object) -> None:
        self._db.preupdate_hook(None, id=_HOOK)

    def _changed(self, update: apsw.PreUpdate) -> None:
        if update.op == "DELETE":
            return
        self._written.add(update.table_name.lower())
        try:
            _ = update.new
        except UnicodeDecodeError:
            self.table = self.table or update.table_name
        except apsw.RangeError:
            self._unread.setdefault(update.table_name, set()).add(update.rowid_new)

    def read_rows(self) -> None:
        """Examine the rows that no hook has shown: those of CREATE TABLE AS, and of tables with VIRTUAL columns.

        If ``table`` is a shadow table, replace it by its virtual table.
        """
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rowid > ?"
        for (name,) in self._db.execute(query, (self._newest,), can_cache=False).fetchall():
            self._read(str(name), f"SELECT * FROM {quote(str(name))}", [()])
        for name, rowids in self._unread.items():
            stored = self._db.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 2", (name,)).fetchall()
            table = find_table(self._db, name)
            assert table is not None
            columns = ", ".join(quote(str(column)) for (column,) in stored)
            query = f"SELECT {columns} FROM {quote(name)} WHERE {table.key_columns[0]} = ?"
            self._read(name, query, [(rowid,) for rowid in rowids])
        if self.table:
            written = self.table.lower()
            owners = (one.name for one in virtual_tables(self._db) if written in map(str.lower, one.shadow_names))
            self.table = next(owners, self.table)

    def check_auxiliary(self) -> None:
        """Check the types of the values in auxiliary columns of vec0's tables, if the statement has written any.

        Raises:
            SqlError: see ``mistyped``.
        """
        if not any(name.endswith("_auxiliary") for name in self._written):
            return
        for one in virtual_tables(self._db):
            if f"{one.name}_auxiliary".lower() not in self._written:
                continue
            for column, kind in one.auxiliary.items():
                query = f"SELECT 1 FROM {quote(one.name)} WHERE typeof({quote(column)}) NOT IN ('null', ?)"
                if self._db.execute(query, (kind,), can_cache=False).fetchone():
                    raise mistyped(one.name, column, kind)

    def _read(self, name: str, query: str, keys: list[tuple[int, ...]]) -> None:
        try:
            for key in keys:
                for _ in self._db.execute(query, key):
                    pass
        except UnicodeDecodeError:
            self.table = name
