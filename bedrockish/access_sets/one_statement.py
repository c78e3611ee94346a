"""The access set of one statement on any APSW connection, without a node and without a configuration."""

from collections.abc import Sequence
from typing import NamedTuple

import apsw

from bedrockish.access_sets.analysis import BYTES_MAX, AccessSetBuilder, Analysis
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.query_names import connection_query
from bedrockish.access_sets.table_layout import Tables
from bedrockish.sqltext.session_settings import NONE, Settings
from bedrockish_journal.model.access_set import AccessSet


class UnchangedStatement(NamedTuple):
    """A statement that runs unchanged, without settings of a session."""

    sql: str
    names: Sequence[str | None]
    auto: None = None
    named: frozenset[str] | None = None
    settings: Settings = NONE


def access_set_of(db: apsw.Connection, sql: str, params: Sequence[object] = ()) -> AccessSet:
    """Run one statement and return its reads and writes.

    The statement's changes belong to the transaction that is open on the connection; without a transaction, SQLite
    commits them. The connection's preupdate hook is replaced while the statement runs, and removed afterwards.

    Args:
        sql: one statement that does not change the schema.
        params: a value for each parameter, in SQLite's order.

    Raises:
        apsw.Error: SQLite refuses the statement, or the statement fails.
        TooLargeError: the changed rows are over the limit of a transaction.
        UnsupportedError: the statement changes rows of a virtual table.
    """
    analysis = Analysis(db, lambda _: None)
    capture = Capture(db, BYTES_MAX)
    try:
        capture.use(Tables(db))
        builder = AccessSetBuilder(analysis, serializable=True)
        plan = analysis.plan(UnchangedStatement(sql, [None] * len(params)))
        resolved = plan.resolve(tuple(params), connection_query(db))
        capture.start()
        # Not from the statement cache: a statement that was compiled before the hook was installed may truncate a table
        # without reporting its rows.
        for _ in db.execute(sql, params, can_cache=False):
            pass
        failure = capture.failure
        changes, touched = capture.stop()
    finally:
        capture.discard_changes()
        db.preupdate_hook(None)
    if failure is not None:
        raise failure
    builder.complete(resolved, changes, touched)
    return builder.finish(changes, list(touched))
