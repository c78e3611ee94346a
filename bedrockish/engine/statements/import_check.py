"""Checks whether a cluster would accept a schema, before any of it is sent there."""

from collections.abc import Iterable
from contextlib import closing

import apsw

from bedrockish.access_sets.table_layout import Tables
from bedrockish.engine.statements.expansion import Expansion
from bedrockish.engine.statements.guard import Guard
from bedrockish.errors import BedrockishError
from bedrockish_journal.storage.table_layout import quote
from bedrockish_journal.storage.vector_modules import ModuleConnection


def misfits(statements: Iterable[tuple[str, str]]) -> list[str]:
    """Return the statements that cannot be replicated, each with the reason.

    Args:
        statements: pairs of a title for the report and the text of a statement, in an order in which they can run.
    """
    found: list[str] = []
    known: Tables | None = None
    with closing(ModuleConnection(":memory:")) as db:
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
                    if error.details.get(kind):  # drop the object, or each later statement would report it again
                        db.execute(f"DROP {kind} {quote(error.details[kind])}")
            except apsw.Error as error:
                found.append(f"{what}: {error}")
    return found
