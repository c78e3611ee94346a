"""Says of a schema whether a cluster would take it, before any of it is sent there."""

from collections.abc import Iterable

import apsw

from bedrockish.access_sets.table_layout import Tables, quote
from bedrockish.engine.statements.classify import Guard
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.errors import BedrockishError
from bedrockish_journal.storage.vector_modules import Connection


def misfits(statements: Iterable[tuple[str, str]]) -> list[str]:
    """Return the statements that cannot be replicated, and why.

    Args:
        statements: what each makes, for the report, and its text, in an order in which they can run.
    """
    found: list[str] = []
    known: Tables | None = None
    db = Connection(":memory:")
    try:
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        guard = Guard(db)
        for what, sql in statements:
            try:
                guard.compile(sql)
                db.execute(sql)
                tables = Tables(db, known)
                tables.check_supported(db, known)
                tables.check_references()
                known = tables
                guard.expansion = Expansion(tables.definitions, guard.expansion)
            except BedrockishError as error:
                found.append(f"{what}: {error.message}")
                for kind in ("table", "view", "trigger"):
                    if error.details.get(kind):  # or it is found again with each of the rest
                        db.execute(f"DROP {kind} {quote(error.details[kind])}")
            except apsw.Error as error:
                found.append(f"{what}: {error}")
    finally:
        db.close()
    return found
