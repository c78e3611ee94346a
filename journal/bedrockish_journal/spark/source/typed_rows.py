"""The changes of one table with typed columns: one row for an insert or delete, two for an update."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.clock import milliseconds
from bedrockish_journal.model.plain_names import folded, plain_name
from bedrockish_journal.model.transaction import ROWS
from bedrockish_journal.spark.source.change_batches import ChangeBuilder, TableChanges
from bedrockish_journal.spark.source.columns import Part, Types
from bedrockish_journal.spark.source.context import Context
from bedrockish_journal.spark.source.declared import DeclaredTable, declared
from bedrockish_journal.spark.source.feeds import expand, nodes_of, open_feed
from bedrockish_journal.spark.source.json_rows import row_texts, value_texts
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.tables import TABLES, SourceTable
from bedrockish_journal.spark.source.typed_values import (
    DELETE,
    INSERT,
    INTEGER,
    OWN,
    POSTIMAGE,
    PREIMAGE,
    SPARK,
    TEXT,
    fit,
    other_texts,
)
from bedrockish_journal.storage.row import JournalRow

OF_A_JOURNAL = {"_node": TEXT, "_leader": TEXT, "_tick": INTEGER}  # the file's node, and the place in a timeline


def table_of(options: ReadOptions) -> SourceTable:
    """Return the table that the options choose; for typed rows, the journals are read for its columns.

    Raises:
        FileMissingError: the journals have no such table.
        JournalError: a journal cannot be read.
    """
    names = [options.rows] if options.rows is not None else sorted(options.limits.named or ())
    if not names:
        return TABLES[options.table]
    paths = nodes_of(expand(options.path), options.access, newest=options.newest).values()
    with ExitStack() as stack:
        feeds = [stack.enter_context(open_feed(path, options.access)) for path in paths]
        every = [declared(feeds, name) for name in names]
    if options.rows is None:
        return TABLES[options.table]  # ``declared`` has checked that the named tables exist or existed
    (found,) = every
    types = {plain_name(name): kind for name, kind in found.types.items()} | {**OWN, **OF_A_JOURNAL}
    columns = {name: SPARK[kind] for name, kind in types.items()}
    return SourceTable(columns, partial(TypedRows, found), kind=ROWS)


class TypedRows(ChangeBuilder):
    """A builder of typed columns of the changes of one table."""

    def __init__(self, of: DeclaredTable, context: Context, types: Types) -> None:
        super().__init__(context, types, makers=("_command", "_user"))
        self._of, self._table = of, folded(of.table)

    def _wants(self, table: str) -> bool:
        return table == self._of.table or folded(table) == self._table

    def _parts(self, one: TableChanges) -> Iterator[Part]:
        """Yield the rows of changes with the same columns: first the rows before, then the rows after."""
        for name, images in ((DELETE, one.before), (INSERT, one.after)):
            at = [place for place, image in enumerate(images) if image is not None]
            if at:
                yield self._part(one, name, at)

    def _part(self, one: TableChanges, name: str, at: list[int]) -> Part:
        """Return the rows before (``name`` is DELETE) or after (INSERT) the changes with the indexes ``at``."""
        all_images, all_others, all_rowids = one.before, one.after, one.rowids
        if name == INSERT:
            all_images, all_others, all_rowids = one.after, one.before, one.rowids_after
        images, others, rowids = _at(all_images, at), _at(all_others, at), _at(all_rowids, at)
        image = PREIMAGE if name == DELETE else POSTIMAGE
        values = dict(zip(one.columns, zip(*images, strict=True), strict=True))
        numbers, order = _at(one.numbers, at), _at(one.order, at)
        kinds = [name if other is None else image for other in others]
        columns: dict[str, Sequence[Any]] = {"_change_type": kinds, "_rowid": rowids}
        columns["_commit_seq"] = [2 * number + (kind == POSTIMAGE) for number, kind in zip(numbers, kinds, strict=True)]
        columns["_key"] = self._keys(values, rowids)
        columns["_command"], columns["_user"] = _at(one.makers, at), _at(one.users, at)
        columns |= {called: _at(one.of_entries(says), at) for called, says in self._heads(one.rows).items()}
        self._fit(values, len(at), columns)
        return [2 * place + (name == INSERT) for place in order], columns

    def _heads(self, rows: Sequence[JournalRow]) -> dict[str, list[Any]]:
        says: dict[str, list[Any]] = {
            "_commit_clock": [row.clock for row in rows],
            "_commit_origin": [row.origin for row in rows],
            "_committed_at": [milliseconds(row.clock) * 1000 for row in rows],
            "_node": [self._context.node] * len(rows),
            "_leader": [row.leader for row in rows],
            "_tick": [row.tick for row in rows],
        }
        return {name: values for name, values in says.items() if name in self._types}

    def _fit(self, values: Mapping[str, tuple[Value, ...]], count: int, into: dict[str, Sequence[Any]]) -> None:
        """Add the columns of the user's table to ``into``, and ``_other`` with the values that do not fit."""
        left = {folded(name): (name, column) for name, column in values.items()}
        others: dict[int, dict[str, Value]] = {}
        for declared_as, kind in self._of.types.items():
            name, column = left.pop(folded(declared_as), (declared_as, (None,) * count))
            into[plain_name(declared_as)], other = fit(column, kind)
            _put(others, name, other)
        for name, column in left.values():  # columns without a known declaration
            _put(others, name, {place: value for place, value in enumerate(column) if value is not None})
        into["_other"] = other_texts(others, count)

    def _keys(self, values: Mapping[str, tuple[Value, ...]], rowids: Sequence[int | None]) -> list[str | None]:
        """Return the key of each row: its rowid, or its primary key as JSON in a table WITHOUT ROWID."""
        if None not in rowids:
            return list(map(str, rowids))
        key = next((key for key in self._of.keys if values.keys() >= {*key}), None)
        if key is None:
            return [None if rowid is None else str(rowid) for rowid in rowids]
        texts = row_texts(key, [value_texts(values[name]) for name in key], len(rowids))
        return [text if rowid is None else str(rowid) for rowid, text in zip(rowids, texts, strict=True)]


def _at(values: Sequence[Any], at: Sequence[int]) -> Sequence[Any]:
    """Return the values with some indexes, which often are all indexes."""
    return values if len(at) == len(values) else [values[place] for place in at] if values else ()


def _put(others: dict[int, dict[str, Value]], name: str, values: Mapping[int, Value]) -> None:
    for place, value in values.items():
        others.setdefault(place, {})[name] = value
