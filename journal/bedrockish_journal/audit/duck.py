"""The audit by DuckDB, with a temporary database file and a memory limit."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bedrockish_journal.audit.facts import FACTS, HELD
from bedrockish_journal.audit.queries import QUERIES
from bedrockish_journal.audit.reading import Progress, Reader
from bedrockish_journal.audit.report import AuditResult, results
from bedrockish_journal.audit.views import DUCKDB, views
from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.source.inputs import find_inputs

MEMORY = "1GB"
INTERRUPTED = "Query interrupted"  # the text of the RuntimeError by which DuckDB reports Ctrl-C


def run_audits(
    paths: list[str],  # the journal of each node, from its file, an export or its URL
    limit: int,  # the greatest number of findings of each law
    memory: str = MEMORY,  # DuckDB's memory limit, in its notation; larger data is spilled to disk
    # Called now and then with a node, the number of its entries read so far, and an estimate of their total.
    progress: Progress | None = None,
    laws: frozenset[str] = frozenset(QUERIES),  # the laws to check
) -> Iterator[AuditResult]:
    """Yield the ``results`` of an audit.

    Raises:
        JournalError: a journal cannot be read, or DuckDB failed.
    """
    reader = Reader(find_inputs(paths), progress)
    try:
        with tempfile.TemporaryDirectory(prefix="bedrockish-audit-") as directory:
            settings: dict[str, Any] = {
                "memory_limit": memory,
                "temp_directory": directory,
                "preserve_insertion_order": "false",
            }
            with duckdb.connect(str(Path(directory) / "audit.duckdb"), config=settings) as db:
                db.execute("SET enable_progress_bar = false")  # DuckDB would print it into the report
                _load(db, reader)
                yield from results(reader, partial(_ask, db), DUCKDB, limit, laws)
    except duckdb.OutOfMemoryException as error:
        raise JournalError(
            f"DuckDB needs more memory than {memory} for this; give more, such as --memory 4GB"
        ) from error
    except duckdb.Error as error:
        raise JournalError(f"DuckDB failed: {error}") from error
    except RuntimeError as error:
        if str(error) == INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


def _load(db: duckdb.DuckDBPyConnection, reader: Reader) -> None:
    db.begin()  # one transaction, so that DuckDB does not sync after each table
    for name, schema in (("held", HELD), ("facts", FACTS)):
        db.register("empty", schema.empty_table())
        db.execute(f"CREATE TABLE {name} AS SELECT * FROM empty")
    for held, facts in reader.batches():
        for name, part in (("held", held), ("facts", facts)):
            if part.num_rows:
                db.register("part", pa.Table.from_batches([part]))
                db.execute(f"INSERT INTO {name} SELECT * FROM part")
    for name, table in reader.records.tables():
        db.register("part", table)
        db.execute(f"CREATE TABLE {name} AS SELECT * FROM part")
    db.unregister("part")
    for view in views(DUCKDB):
        db.execute(f"CREATE {'TABLE' if view.is_table else 'VIEW'} {view.name} AS {view.sql}")
    db.commit()


def _ask(db: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    return db.execute(query).fetchall()
