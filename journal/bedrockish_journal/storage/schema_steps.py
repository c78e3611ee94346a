"""Execution of the statements of a schema change when it comes into force, and comparison of their results.

Besides definitions, a change may have statements that write or read rows. The leader has executed all statements in
order before the commit, and the change has digests of the results that the client got. At the activation all nodes have
the same tables, so the statements have the same results on each node. If a result differs from the client's, the change
fails on every node. The effect is that of running the whole transaction at the activation.

Returned rows are compared one by one, in their order if the statement has an ORDER BY. Numbers of changed rows are
compared only as zero, one or more, so that a statement that copies a table still fits if the table has grown.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import apsw
import cbor2

from bedrockish_journal.model.changes import DO, FAIL, OVERTAKEN, SchemaStep
from bedrockish_journal.storage.drawn_ids import WHY, DrawnIds
from bedrockish_journal.storage.packing import set_aside
from bedrockish_journal.storage.vector_drops import prepare_drop

KEYS_OFF, KEYS_ON = "PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON"
DEFER_ON, DEFER_OFF = "PRAGMA defer_foreign_keys = ON", "PRAGMA defer_foreign_keys = OFF"
LEGACY_ON, LEGACY_OFF = "PRAGMA legacy_alter_table = ON", "PRAGMA legacy_alter_table = OFF"
"""Steps before and after each ALTER that leaves views and triggers unchanged, also before and after one that fails."""
SETTINGS = (KEYS_OFF, KEYS_ON, DEFER_ON, DEFER_OFF, LEGACY_ON, LEGACY_OFF)
RESET = (KEYS_ON, DEFER_OFF, LEGACY_OFF)
"""The settings of a connection outside of schema changes."""
MARK = "bedrockish_in_force"
"""The savepoint around the statements of a change; no statement may use its name."""
_PART = f"{MARK}_part"
BEFORE_FAILURE, AFTER_FAILURE = (f"SAVEPOINT {_PART}",), (f"ROLLBACK TO {_PART}", f"RELEASE {_PART}")
"""Steps before and after a write that failed. If a module failed, or a foreign key with too many levels, SQLite leaves
some of the written rows, and the leader has removed these. Nodes of every release run the steps, and so remove them,
too; a journal of a release without the steps keeps such rows."""
BROKEN = "FOREIGN KEY constraint failed"
DATA = (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError, apsw.TooBigError)
"""The errors that the data can cause, on every node alike; other errors of SQLite may concern one node only."""

_SWITCHES = (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_FKEY)
_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
_BYTES = 32


def answer_digest(sql: str, rows: Iterable[Sequence[Any]], changed: int = 0, rowid: int = 0) -> bytes:
    """Return the digest of the result of a statement.

    Args:
        sql: the statement; with an ORDER BY anywhere in it, the order of the rows counts.
        rowid: the rowid that the statement inserted last, or 0; counts only if the statement changed one row.
    """
    ordered = _ORDERED.search(sql) is not None
    total = count = 0
    for row in rows:
        one = sha256(cbor2.dumps(list(row)))
        if ordered:
            one.update(total.to_bytes(_BYTES, "big"))
            total = 0
        total = (total + int.from_bytes(one.digest(), "big")) % (1 << 8 * _BYTES)
        count += 1
    return sha256(cbor2.dumps([min(changed, 2), rowid if changed == 1 else 0, count, total])).digest()[:16]


def failure_digest(text: str) -> bytes:
    """Return the digest of the error of a statement."""
    return sha256(text.encode()).digest()[:16]


def violations(db: apsw.Connection) -> Counter[Any]:
    """Return the rows whose foreign keys refer to a missing row, as ``PRAGMA foreign_key_check`` reports them."""
    return Counter(db.execute("PRAGMA foreign_key_check"))


def deferred_broken(db: apsw.Connection) -> bool:
    """Return whether SQLite counts a deferred foreign key as broken now."""
    return bool(db.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0])


def set_option(db: apsw.Connection, sql: str) -> None:
    """Execute one of ``SETTINGS``. SQLite ignores the PRAGMAs ``KEYS_OFF`` and ``KEYS_ON`` inside a transaction."""
    assert sql in SETTINGS
    if sql in (KEYS_OFF, KEYS_ON):
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, int(sql == KEYS_ON))
        return
    cursor = db.cursor()
    cursor.execute(sql, can_cache=False)  # SQLite sets the flag when it compiles the PRAGMA
    cursor.close(True)


def run(db: apsw.Connection, steps: Sequence[SchemaStep]) -> str:
    """Run the statements of a change inside the open transaction; roll back all of them if one fails.

    Triggers and foreign keys must be on (see ``switch``).

    Return the reason why the data forbids the change; empty if all statements ran.

    Raises:
        apsw.Error: a statement failed for another reason than the data, such as a full disk or a missing function or
            collation; the statement may succeed on other nodes.
    """
    options = [step.sql for step in steps if step.sql in SETTINGS]
    db.execute(f"SAVEPOINT {MARK}")
    try:
        failure = _run(db, steps, unchecked=KEYS_OFF in options)
        if failure:
            db.execute(f"ROLLBACK TO {MARK}")
        return failure
    except DATA as error:
        if not db.in_transaction:
            raise  # SQLite has rolled back the whole transaction
        db.execute(f"ROLLBACK TO {MARK}")
        if is_missing(str(error)):
            raise  # other nodes have the function or collation that is missing here
        return str(error)
    finally:
        if db.in_transaction:
            db.execute(f"RELEASE {MARK}")
        for option in RESET if options else ():
            set_option(db, option)


def _run(db: apsw.Connection, steps: Sequence[SchemaStep], *, unchecked: bool) -> str:
    before = violations(db) if unchecked else None
    drawn: DrawnIds | None = None
    for number, step in enumerate(steps, 1):
        if step.sql in SETTINGS:
            set_option(db, step.sql)
        elif step.kind == DO and not step.result_digest:
            with set_aside(db, step.sql):
                prepare_drop(db, step.sql)
                db.execute(step.sql).fetchall()
            if drawn is not None:
                drawn.schema_changed()
        else:
            drawn = drawn or DrawnIds(db)
            with drawn:
                failure = _check(db, step)
            if drawn.table:
                failure = failure or WHY.format(drawn.table)
            if failure:
                return f"{OVERTAKEN}: statement {number}, {step.sql.strip()[:200]!r}, {failure}"
    if deferred_broken(db) or (before is not None and violations(db) - before):
        return BROKEN
    return ""


def _check(db: apsw.Connection, step: SchemaStep) -> str:
    """Run a statement whose result at the leader is known; return how the result differs now, or an empty text."""
    db.set_last_insert_rowid(0)
    try:
        rows = db.execute(step.sql, can_cache=False).fetchall()
        counts = (db.changes(), db.last_insert_rowid()) if step.kind == DO else (0, 0)
        digest = answer_digest(step.sql, rows, *counts) if step.kind != FAIL else b""
    except UnicodeDecodeError:
        return "gives a text that is not UTF-8"
    except DATA as error:
        if is_missing(str(error)):
            raise
        if step.kind != FAIL:
            return f"fails: {error}"
        digest = failure_digest(str(error))
    return "" if digest == step.result_digest else "gives another answer now"


def put_in_force(db: apsw.Connection, statements: Sequence[str]) -> None:
    """Run the statements of a feed's schema change on a copy; triggers and foreign keys are on while they run.

    Raises:
        apsw.Error: a statement fails, because the copy differs from the cluster's tables.
    """
    switch(db, on=True)
    try:
        for sql in statements:
            if sql in SETTINGS:
                set_option(db, sql)
            else:
                prepare_drop(db, sql)
                db.execute(sql).fetchall()
    finally:
        for option in (DEFER_OFF, LEGACY_OFF):
            set_option(db, option)
        switch(db, on=False)


def is_missing(text: str) -> bool:
    """Return whether an error of SQLite says that a function, a collation or a module was not registered."""
    return text.startswith(("no such function", "no such collation", "no such module", "unknown function"))


def switch(db: apsw.Connection, *, on: bool) -> None:
    """Switch triggers, foreign keys and CHECKs on or off for the whole connection."""
    for one in _SWITCHES:
        db.config(one, int(on))
    enforce_checks(db, on=on)


def enforce_checks(db: apsw.Connection, *, on: bool) -> None:
    """Switch CHECKs on or off for statements that are compiled from now on.

    SQLite sets the flag when it compiles the PRAGMA. Running the PRAGMA would make SQLite compile all cached statements
    again, so EXPLAIN only compiles it. A statement cache must keep statements compiled with and without CHECKs apart.
    """
    db.execute(f"EXPLAIN PRAGMA ignore_check_constraints = {int(not on)}", can_cache=False).close(True)
