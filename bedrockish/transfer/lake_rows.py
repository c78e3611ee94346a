"""The rows of a lake for a commit: typed columns, one row for an insert or delete, two for an update, as Arrow has
them.

Types and misfit values are treated as in ``typed_values``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from bedrockish_journal.feed.change_feed import Committed
from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.plain_names import plain_name
from bedrockish_journal.spark.source.json_rows import row_text
from bedrockish_journal.spark.source.typed_values import (
    DELETE,
    INSERT,
    INTEGER,
    MOMENT,
    OWN,
    POSTIMAGE,
    PREIMAGE,
    TEXT,
    column_type,
    fit,
    kept_type,
    other_texts,
)
from bedrockish_journal.storage.table_layout import find_table, quote
from bedrockish_journal.storage.wide_rows import all_of, select

COMMITS = "_commits"  # never the name of a user's table: a lake's names of these never begin with _
COPY = "copy"  # the kind of a commit that stands for rows that were there when the lake was begun
OF_COMMITS = {
    "_commit_clock": INTEGER,
    "_commit_origin": TEXT,
    "_committed_at": MOMENT,
    "_leader": TEXT,
    "_tick": INTEGER,
    "_kind": TEXT,
    "_command": TEXT,
    "_user": TEXT,
    "_changes": INTEGER,
    "_statements": TEXT,
}
Values = Mapping[str, Value]
Image = tuple[int | None, Values | None]  # a row's rowid and values; without values the row does not exist


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for one table of a lake.

    Attributes:
        types: the types of its columns, by name.
        columns: the values of each column, all of the same length.
    """

    types: Mapping[str, str]
    columns: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The layout of a table in a lake.

    Attributes:
        name: the name of the table.
        rowid: a name for the rowid; None for a table WITHOUT ROWID.
        key: the columns of the primary key of a table WITHOUT ROWID; else none.
        types: the types of its stored columns, by name.
    """

    name: str
    rowid: str | None
    key: tuple[str, ...]
    types: Mapping[str, str]

    def key_of(self, image: Image) -> str | None:
        """Return the text that identifies a row through its updates: its rowid, or its primary key as JSON."""
        rowid, values = image
        if self.rowid is not None or values is None:
            return None if rowid is None else str(rowid)
        return row_text(self.key, tuple(values[column] for column in self.key))

    def rows(self, db: apsw.Connection) -> Iterator[tuple[int | None, Values]]:
        """Yield all rows."""
        for rowid, *row in select(db, self._columns, f"FROM {quote(self.name)} ORDER BY {', '.join(self._key)}"):
            yield rowid, dict(zip(self.types, row, strict=True))

    def row(self, db: apsw.Connection, rowid: int | None, like: Values) -> Values | None:
        """Return the row with the same key as ``like``, or None."""
        key = (rowid,) if self.rowid is not None else tuple(like[column] for column in self.key)
        where = all_of([f"{name} = ?" for name in self._key])
        found = next(select(db, self._columns, f"FROM {quote(self.name)} WHERE {where}", key), None)
        return None if found is None else dict(zip(self.types, found[1:], strict=True))

    @property
    def _key(self) -> list[str]:
        return [self.rowid] if self.rowid is not None else [quote(column) for column in self.key]

    @property
    def _columns(self) -> list[str]:
        return [self.rowid or "NULL", *(f"{quote(self.name)}.{quote(column)}" for column in self.types)]


def shape_of(db: apsw.Connection, name: str) -> Shape:
    """Return the shape that a table has now."""
    table = find_table(db, name)
    assert table is not None, "it was found a moment ago"
    any_type = "CASE WHEN upper(type) = 'ANY' AND (SELECT strict FROM pragma_table_list(?1)) THEN '' ELSE type END"
    info = f"SELECT name, {any_type} FROM pragma_table_xinfo(?1) WHERE hidden IN (0, 3) ORDER BY cid"
    types = {column: column_type(declared) for column, declared in db.execute(info, (table.name,))}
    rowid = table.rowid if table.rowid is None else quote(table.rowid)
    return Shape(table.name, rowid, table.primary if rowid is None else (), types)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of a row.

    Attributes:
        commit: the commit that made it.
        number: its number among the commit's changes, from 0.
        shape: the table, as it is after the change, or was before it was dropped.
        maker: the id of the command that made it; None if that is unknown.
        before, after: the row.
    """

    commit: Committed
    number: int
    shape: Shape
    maker: str | None
    before: Image
    after: Image

    def images(self) -> Iterator[tuple[str, Image, int]]:
        """Yield the lake's rows for the change: the kind, the row, and the place in the commit."""
        if self.before[1] is None or self.after[1] is None:
            is_new = self.before[1] is None
            yield INSERT if is_new else DELETE, self.after if is_new else self.before, 2 * self.number
            return
        yield PREIMAGE, self.before, 2 * self.number
        yield POSTIMAGE, self.after, 2 * self.number + 1


def event_rows(events: Sequence[Event], known: Mapping[str, str]) -> Rows:
    """Return the rows for the changes of one table.

    Args:
        events: the changes.
        known: types of the columns that the lake's table has already, which stay as they are.
    """
    called = _Names(known)
    types: dict[str, str] = {}  # by the lake's names
    for event in events:
        declared = {called[name]: kind for name, kind in event.shape.types.items()}
        for _, values in (event.before, event.after):
            for name in values or ():
                declared.setdefault(called[name], TEXT)  # the type of a column that was dropped
        for name, kind in declared.items():
            types[name] = kept_type(known.get(name, types.get(name, kind)), kind)
    own: list[tuple[Any, ...]] = []
    images: list[Values] = []
    for event in events:
        whose = event.commit.whose.get(event.maker)
        for kind, image, seq in event.images():
            at = (event.commit.clock, event.commit.cursor.leader, seq, event.commit.at)
            own.append((kind, event.shape.key_of(image), *at, event.maker, whose, image[0]))
            images.append({called[name]: value for name, value in (image[1] or {}).items()})
    columns: dict[str, Sequence[Any]] = dict(zip(OWN, map(list, zip(*own, strict=True)), strict=False))
    others: dict[int, dict[str, Value]] = {}
    for name, kind in types.items():
        columns[name], other = fit([values.get(name) for values in images], kind)
        for place, value in other.items():
            others.setdefault(place, {})[called.of(name)] = value
    columns["_other"] = other_texts(others, len(images))
    return Rows({**OWN, **types}, columns)


class _Names:
    """The lake's names of a table's columns. As in Delta, Iceberg and SQLite, names that differ only in case are the
    same.

    Args:
        known: the names that the lake's table has already, which stay as they are.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name.lower(): name for name in known}
        self._called: dict[str, str] = {}
        self._of: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the lake's name of a column."""
        found = self._called.get(name)
        if found is None:
            plain = plain_name(name)
            found = self._called[name] = self._known.setdefault(plain.lower(), plain)
        self._of[found] = name
        return found

    def of(self, called: str) -> str:
        """Return a column's latest name in the cluster's table, given its name in the lake."""
        return self._of.get(called, called)


def commit_rows(commits: Sequence[Committed], copied: int = 0) -> Rows:
    """Return a row for each commit; ``copied`` rows of a copy belong to each."""
    rows = [
        (
            *(one.clock, one.cursor.leader, one.at, *one.place, one.kind, one.command, one.whose.get(one.command)),
            *(len(one.changes) + copied, json.dumps(one.statements) if one.statements else None),
        )
        for one in commits
    ]
    return Rows(
        OF_COMMITS, {name: list(column) for name, column in zip(OF_COMMITS, zip(*rows, strict=True), strict=True)}
    )
