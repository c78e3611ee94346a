"""Sections of a script that run as one transaction because foreign keys are off in them. Pure.

A script for SQLite switches ``PRAGMA foreign_keys`` off, rebuilds a table under another name, and switches it on. At a
node, each statement would be a transaction of its own, and its COMMIT would check foreign keys, although the children
of the dropped table have no parent yet. So the statements between OFF and ON are one transaction.
"""

from collections.abc import Iterable, Iterator, Sequence

from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of, switch_of
from bedrockish.sqltext.tokenizer import NotTokensError, walk
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, SAVEPOINT, parse_control

STATEMENTS_MAX = 5_000
PARENTS = (
    "SELECT DISTINCT k.\"table\" FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS k WHERE t.type = 'table' "
    "AND NOT (k.on_delete IN ('NO ACTION', 'RESTRICT') AND k.on_update IN ('NO ACTION', 'RESTRICT'))"
)
"""Selects the tables to which foreign keys with an action refer."""
OFF, ON = ("foreign_keys", False), ("foreign_keys", True)


def sections(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the statements of a script in groups: a section with its first PRAGMA, and each other statement alone.

    >>> [len(one) for one in sections(["PRAGMA foreign_keys = 0", "DROP TABLE t", "PRAGMA foreign_keys = 1"])]
    [2, 1]
    """
    at = 0
    is_open = False
    while at < len(texts):
        end = at + 1
        found = parse_control(texts[at])
        if found is not None:
            is_open = found.kind in (BEGIN, SAVEPOINT) or (is_open and found.kind not in (COMMIT, ROLLBACK))
        elif not is_open and switch_of(texts[at]) == OFF:
            end = section_end(texts, at)
        yield texts[at:end]
        at = end


def section_end(texts: Sequence[str], at: int) -> int:
    """Return the position after the section that begins with PRAGMA foreign_keys = OFF at position ``at``.

    If no statement up to ON changes the schema, or one controls a transaction, the section is only the PRAGMA.
    """
    changes = False
    end = at + 1
    while end < len(texts) and end - at < STATEMENTS_MAX and switch_of(texts[end]) != ON:
        if parse_control(texts[end]) is not None:
            return at + 1
        changes = changes or kind_of(texts[end]) == SCHEMA
        end += 1
    return end if changes else at + 1


def check_no_action(sql: str, parents: Iterable[str]) -> None:
    """Check that a statement which changes rows cannot cause a foreign key action while foreign keys are off.

    Args:
        parents: the tables to which foreign keys with actions refer, from ``PARENTS``.

    Raises:
        UnsupportedError: the statement may cause an action.
    """
    try:
        tokens = list(walk(sql))
    except NotTokensError:
        return  # SQLite reports the error
    if not any(token.is_word("DELETE", "UPDATE", "REPLACE") for token in tokens):
        return
    names = {(token.name or "").lower() for token in tokens if token.kind in ("word", "quoted", "string")}
    for parent in parents:
        if parent.lower() in names:
            raise UnsupportedError(
                f"PRAGMA foreign_keys is off, but nodes always enforce foreign keys for rows, and those that refer to "
                f"{parent} would act (CASCADE, SET NULL, SET DEFAULT); switch it on, or change the schema before, in "
                "the same transaction",
                sql=sql,
            )
