"""Sections of a script that run as one transaction because foreign keys are off in them. Pure.

A script on SQLite switches ``PRAGMA foreign_keys`` off, rebuilds a table under another name, and switches it on. At a
node each statement would be a transaction of its own, whose foreign keys are checked at its end; in between, the
children of the dropped table have no parent. So the statements between OFF and ON are one transaction, which happens
as a whole or not at all.
"""

from collections.abc import Iterator, Sequence

from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of, switch_of
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, SAVEPOINT, parse_control

STATEMENTS_MAX = 5_000
OFF, ON = ("foreign_keys", False), ("foreign_keys", True)


def sections(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the statements of a script: one by one, and together those that run as one transaction, after their PRAGMA.

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
    """Return the end of the section that begins with PRAGMA foreign_keys = OFF at a place.

    It is the place after the PRAGMA if nothing there changes the schema, or transactions of the script's own follow.
    """
    changes = False
    end = at + 1
    while end < len(texts) and end - at < STATEMENTS_MAX and switch_of(texts[end]) != ON:
        if parse_control(texts[end]) is not None:
            return at + 1
        changes = changes or kind_of(texts[end]) == SCHEMA
        end += 1
    return end if changes else at + 1
