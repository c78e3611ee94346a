"""Sections of a script that run as one transaction because foreign keys are off in them. Pure.

A script for SQLite switches ``PRAGMA foreign_keys`` off, rebuilds a table under another name, and switches it on. At a
node, each statement would be a transaction of its own, and its COMMIT would check foreign keys, although the children
of the dropped table have no parent yet. So the statements between OFF and ON are one transaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bedrockish.errors import UnsupportedError
from bedrockish.sqltext.statement_kinds import SCHEMA, kind_of, switch_of
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, SAVEPOINT, parse_control

STATEMENTS_MAX = 5_000
PARENTS = (
    'SELECT DISTINCT k."table", iif(p.hidden = 0, p.name, NULL) '
    "FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS k "
    'LEFT JOIN pragma_table_xinfo(k."table") AS p ON iif(k."to" IS NULL, p.pk > 0, p.name = k."to" COLLATE NOCASE) '
    "WHERE t.type = 'table' AND NOT (k.on_delete IN ('NO ACTION', 'RESTRICT') AND "
    "k.on_update IN ('NO ACTION', 'RESTRICT'))"
)
"""Selects the tables to which foreign keys with an action refer, each with a column of its key.

The column is NULL if SQLite computes it, because an UPDATE of another column may change it."""
TRIGGERS = "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'"
"""Selects the tables and views with triggers, each with the text of the trigger."""
ROWID = frozenset({"rowid", "oid", "_rowid_"})  # further names of an INTEGER PRIMARY KEY
AFTER_SET = ("WHERE", "FROM", "RETURNING", "ORDER", "LIMIT", "ON")  # words that end the assignments of an UPDATE
FOREIGN_KEYS, LEGACY = "foreign_keys", "legacy_alter_table"
OFF, ON = (FOREIGN_KEYS, False), (FOREIGN_KEYS, True)


def pragma(name: str, *, on: bool) -> str:
    """Return the text of PRAGMA foreign_keys or PRAGMA legacy_alter_table with a value."""
    return f"PRAGMA {name} = {'ON' if on else 'OFF'}"


KEYS_OFF = pragma(FOREIGN_KEYS, on=False)


@dataclass(slots=True)
class KeyPragmas:
    """PRAGMA foreign_keys and PRAGMA legacy_alter_table in one open transaction of a session.

    Attributes:
        foreign_keys: the value of the last PRAGMA foreign_keys that ran in it; None without one.
        is_legacy: whether the last PRAGMA legacy_alter_table that ran in it was ON.
    """

    foreign_keys: bool | None = None
    is_legacy: bool = False

    def value(self, name: str, *, outside: bool) -> bool:
        """Return the value of a PRAGMA; ``outside`` is that of PRAGMA foreign_keys outside of the transaction."""
        if name == LEGACY:
            return self.is_legacy
        return outside if self.foreign_keys is None else self.foreign_keys

    def has(self, name: str, *, on: bool) -> bool:
        """Return whether the transaction runs with this value already. A node enforces keys without a PRAGMA."""
        return on == (self.is_legacy if name == LEGACY else self.foreign_keys is not False)

    def note(self, name: str, *, on: bool) -> None:
        """Record that a PRAGMA has run."""
        if name == LEGACY:
            self.is_legacy = on
        else:
            self.foreign_keys = on


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


def check_no_action(sql: str, parents: Sequence[tuple[str, str | None]], triggers: Iterable[tuple[str, str]]) -> None:
    """Check that a statement which changes rows cannot cause a foreign key action while foreign keys are off.

    Args:
        parents: the result of ``PARENTS``.
        triggers: the result of ``TRIGGERS``. All triggers of the tables that the statement names may fire.

    Raises:
        UnsupportedError: the statement may cause an action.
    """
    waiting, rest = [sql], list(triggers)
    while waiting:
        tokens = _body(waiting.pop())
        names = {_name(token) for token in tokens}
        deletes = any(_deletes(*three) for three in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False))
        assigned = _assigned(tokens)
        for parent, key in parents if deletes or assigned else ():
            changes_key = key is None or not assigned.isdisjoint(ROWID | {key.lower()})
            if parent.lower() in names and (deletes or changes_key):
                raise UnsupportedError(
                    f"PRAGMA foreign_keys is off, but nodes always enforce foreign keys for rows, and those that refer "
                    f"to {parent} would act (CASCADE, SET NULL, SET DEFAULT); switch the PRAGMA on, or send the "
                    "statement in a transaction",
                    sql=sql,
                )
        waiting += [text for table, text in rest if table.lower() in names]
        rest = [one for one in rest if one[0].lower() not in names]


def _body(sql: str) -> list[SqlToken]:
    """Return the tokens of a statement; of a CREATE TRIGGER, those of its statements."""
    try:
        tokens = list(walk(sql))
    except NotTokensError:
        return []  # SQLite reports the error
    begin = next((place for place, token in enumerate(tokens) if token.is_word("BEGIN")), 0)
    return tokens[begin:] if tokens and tokens[0].is_word("CREATE") else tokens


def _deletes(before: SqlToken | None, token: SqlToken, after: SqlToken | None) -> bool:
    """Return whether a word means that rows may be deleted; the name of the function replace() does not."""
    is_clause = (before is not None and before.is_word("OR")) or (after is not None and after.is_word("INTO"))
    return token.is_word("DELETE") or (token.is_word("REPLACE") and is_clause)


def _name(token: SqlToken) -> str:
    return (token.name or "").lower() if token.kind in ("word", "quoted", "string") else ""


def _assigned(tokens: Sequence[SqlToken]) -> set[str]:
    """Return the columns to which the UPDATEs of a statement assign values."""
    found: set[str] = set()
    depth, starts, is_left = 0, -1, False  # ``starts``: the depth at which assignments began; -1 outside of them
    for before, token in zip([None, *tokens], tokens, strict=False):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.is_word("SET"):
            starts, is_left = depth, True
        elif depth < starts or (depth == starts and _ends_assignments(before, token)):
            starts = -1
        elif depth == starts and token.text in (",", "=", "=="):
            is_left = token.text == ","
        elif starts >= 0 and is_left:
            found.add(_name(token))
    return found


def _ends_assignments(before: SqlToken | None, token: SqlToken) -> bool:
    """Return whether a token ends the assignments of an UPDATE; the FROM of IS DISTINCT FROM does not."""
    is_operator = before is not None and before.is_word("DISTINCT")
    return token.text == ";" or (token.is_word(*AFTER_SET) and not is_operator)
