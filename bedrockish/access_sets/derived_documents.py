"""Refuses rows and UNIQUE keys for which SQLite would compute other values at other nodes, because of a JSON document.

SQLite marks the result of a JSON function as a document, until the value is stored. So ``json_array(a)`` is ``[[1]]``
if ``a`` is the document ``[1]``, made in the same statement, and ``["[1]"]`` if ``a`` is the stored text. The journal
has the stored row, from which each node computes generated columns and index entries again. Such a node would compute
other values, and so other UNIQUE keys, than the leader.
"""

from bedrockish.access_sets.catalog import Prepare, Schema
from bedrockish.access_sets.computed_columns import ComputedColumns, Scratch
from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.document_functions import reads_documents
from bedrockish_journal.model.changes import Row, same_value
from bedrockish_journal.storage.table_layout import quote


class DerivedDocuments:
    """The check of rows captured under a schema: their generated columns are computed again in a private database."""

    def __init__(self, schema: Schema, prepare: Prepare) -> None:
        self._schema, self._scratch = schema, Scratch(schema.encoding, prepare)
        self._known: dict[str, tuple[ComputedColumns, list[tuple[int, str]]] | None] = {}

    def check(self, name: str, row: Row, rowid: int | None) -> UnsupportedError | None:
        """Return the error for a row whose STORED columns get another value when computed from the row; else None.

        Args:
            name: the row's table, which has STORED generated columns.
            rowid: its rowid; None in a table WITHOUT ROWID.
        """
        if name not in self._known:
            self._known[name] = self._columns_of(name)
        known = self._known[name]
        derived = known[0].values(row, rowid) if known is not None else None
        if known is None or derived is None:
            return None
        for (place, column), value in zip(known[1], derived, strict=True):
            if not same_value(row[place], value):
                return UnsupportedError(
                    f"{name}.{column} is computed from a JSON document that this statement makes, and would have "
                    "another value when it is computed from the stored row; store the document as a text: write "
                    "json(...) || '' in place of json(...)",
                    table=name,
                    column=column,
                )
        return None

    def _columns_of(self, name: str) -> tuple[ComputedColumns, list[tuple[int, str]]] | None:
        """Return the evaluator of a table's STORED columns, with their positions and names; None if none reads JSON."""
        table = self._schema.tables.get(name)
        if table is None or not reads_documents(table.sql):
            return None
        places = [(one.place, one.name) for one in table.columns if one.generated and one.place is not None]
        computed = self._scratch.columns(table, [quote(column) for _, column in places])
        return None if computed is None else (computed, places)
