"""The names of the TEMP objects of one connection, whose changes need neither the write lock nor a right to write."""

from bedrockish.sqltext.statement_kinds import WRITE, kind_of, verb_of
from bedrockish.sqltext.temporary import makes_temporary, named_kind, target_of


class TemporaryNames:
    """The names of TEMP objects that the connection has made, as far as its statements show them."""

    def __init__(self) -> None:
        self._names: set[str] | None = set()  # None after a trigger, which may write other tables
        self._before: set[str] = set()  # the names at the beginning of the open transaction

    def covers(self, sql: str) -> bool:
        """Return whether a statement that writes changes TEMP objects only."""
        if self._names is None or makes_temporary(sql):
            return makes_temporary(sql) and named_kind(sql) != "TRIGGER"
        schema, name = target_of(sql)
        is_known = schema == "temp" or (not schema and name in self._names)
        # A trigger of the database may have the name of a TEMP table.
        return is_known and (kind_of(sql) == WRITE or (verb_of(sql) == "DROP" and named_kind(sql) != "TRIGGER"))

    def note(self, sql: str) -> None:
        """Note the names that a change of the schema makes or drops; after another change, a name may be used again."""
        if self._names is None:
            return
        if makes_temporary(sql):
            self._names.add(target_of(sql)[1])
            self._names = None if named_kind(sql) == "TRIGGER" else self._names
        elif self.covers(sql):
            self._names.discard(target_of(sql)[1])
        else:
            self._names.clear()

    def begin(self) -> None:
        """Note the beginning of a transaction."""
        self._before = set(self._names or ())

    def roll_back(self) -> None:
        """Forget the objects that the open transaction has made, because it is rolled back, wholly or in part."""
        if self._names is not None:
            self._names &= self._before

    def clear(self) -> None:
        """Forget all objects, because the session has none."""
        self._names = set()
