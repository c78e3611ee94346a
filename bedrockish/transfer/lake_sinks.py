"""The tables of a lake as Delta tables, written with the package deltalake (extra ``[lake]``).

Rows and the number of their batch are added in one commit, so a batch is never added twice.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from bedrockish.errors import UsageError
from bedrockish.transfer.lake_rows import Rows
from bedrockish_journal.model.plain_names import plain_name
from bedrockish_journal.spark.source.columns import ARROW
from bedrockish_journal.spark.source.typed_values import BLOB, SPARK, TEXT

APPLICATION = "bedrockish"  # under which Delta keeps the number of the last batch
TYPES: Mapping[str, pa.DataType] = {kind: ARROW[name] for kind, name in SPARK.items()}


class DeltaTables:
    """Tables of Delta Lake, a folder for each.

    Args:
        directory: the directory of the folders.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = _checked(directory)
        self._batches: dict[str, int] = {}

    def name_of(self, table: str) -> str:
        """Return the lake's name of a table of the cluster."""
        return _name_of(table, (log.parent.name for log in self._directory.glob("*/_delta_log")))

    def batch(self, table: str) -> int:
        """Return the number of a table's last batch; 0 if the table does not exist."""
        if table not in self._batches:
            path = self._path(table)
            version = DeltaTable(path).transaction_version(APPLICATION) if DeltaTable.is_deltatable(path) else None
            self._batches[table] = version or 0
        return self._batches[table]

    def types(self, table: str) -> dict[str, str]:
        """Return the types of the columns that a table has."""
        path = self._path(table)
        return _kinds(pa.schema(DeltaTable(path).schema().to_arrow())) if DeltaTable.is_deltatable(path) else {}

    def append(self, table: str, rows: Rows, batch: int) -> None:
        """Append rows and the number of their batch to a table; make the table or columns as needed.

        Raises:
            UsageError: the table cannot be written.
        """
        done = CommitProperties(app_transactions=[Transaction(APPLICATION, batch)])
        self._batches.pop(table, None)
        try:
            write_deltalake(
                self._path(table), arrow_table(rows), mode="append", schema_mode="merge", commit_properties=done
            )
        except (DeltaError, OSError) as error:
            raise _unwritten(table, error) from error

    def _path(self, table: str) -> str:
        return str(self._directory / table)


def _name_of(table: str, known: Iterable[str]) -> str:
    """Return the lake's name of a table: a known name that differs only in the case of letters, else a new one."""
    plain = plain_name(table)
    return next((name for name in known if name.lower() == plain.lower()), plain)


def _checked(directory: Path) -> Path:
    """Return the absolute path of a folder. deltalake reads it as a part of a URL.

    Raises:
        UsageError: the path has a character with a meaning in URLs.
    """
    found = directory.absolute()
    if any(one in str(found) for one in "%?#"):
        raise UsageError(f"{found} has one of % ? # in it, which tables of a lake do not bear; use another directory")
    return found


def arrow_table(rows: Rows) -> pa.Table:
    """Return rows as an Arrow table."""
    types = {name: TYPES[kind] for name, kind in rows.types.items()}
    return pa.table([pa.array(rows.columns[name], kind) for name, kind in types.items()], list(types))


def _kinds(schema: pa.Schema) -> dict[str, str]:
    """Return the kinds of a schema's columns; columns of types that this program does not make are left out."""
    names = {kind: name for name, kind in TYPES.items()} | {pa.large_string(): TEXT, pa.large_binary(): BLOB}
    return {one.name: names[one.type] for one in schema if one.type in names}


def _unwritten(table: str, error: Exception) -> UsageError:
    return UsageError(
        f"table {table} of the lake cannot be written: {error}. Nothing of this batch counts before all of it is "
        "there: correct the cause and start again"
    )
