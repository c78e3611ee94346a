"""Replaces calls such as ``datetime('now')`` in a statement by their values, so that every node writes the same rows.

A statement of a transaction that changes the schema and rows runs at every node. The node that leads the transaction
computes each call of a function of time whose arguments are literals, and records the statement with the value in it:

    UPDATE t SET at = CURRENT_TIMESTAMP         UPDATE t SET at = ('2026-01-31 12:00:00')
    INSERT INTO t VALUES (random())             INSERT INTO t VALUES ((-1234567890))
    INSERT INTO t(a) VALUES (1)                 INSERT INTO t(a, "at") VALUES (1, ('2026-01-31 12:00:00'))
    INSERT INTO t(a) SELECT b FROM u            INSERT INTO t(a, "at") WITH bedrockish_rows AS MATERIALIZED
                                                (SELECT b FROM u) SELECT *, ('2026-01-31 12:00:00') FROM bedrockish_rows

In the last two, the column ``at`` has the default ``CURRENT_TIMESTAMP``. As in SQLite, ``now`` is one moment for the
whole statement. A random value is computed only where it belongs to one row, in ``VALUES``. All other calls stay in the
text, and the caller refuses them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bedrockish.engine.statements.insert_parser import Insert, InsertParser, NotUnderstoodError
from bedrockish.engine.statements.insert_rewriter import materialized
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, SqlToken, spliced, tokens
from bedrockish_journal.storage.table_layout import quote, value_as_sql

DATES = frozenset({"date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff"})
"""Functions that depend on the time only if an argument says so, such as ``'now'``."""
RANDOM = frozenset({"random", "randomblob"})
BLOB_DIGITS = 6
"""The most digits in the size of a random blob whose value is written into a statement."""

_WORDS = ("CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME")
COMPUTED = DATES | RANDOM | frozenset(map(str.lower, _WORDS))
"""The functions that a leader computes, by their names in bytecode."""
_INSIDE = frozenset({"(", ")", ",", "+", "-", "||"})
_BEFORE = (  # the keywords after which an expression begins; after other words, one of ``_WORDS`` is a name
    *("SELECT", "DISTINCT", "ALL", "FROM", "WHERE", "ON", "BY", "HAVING", "LIMIT", "OFFSET", "RETURNING"),
    *("CASE", "WHEN", "THEN", "ELSE", "AND", "OR", "NOT", "IS", "IN", "BETWEEN"),
    *("LIKE", "GLOB", "REGEXP", "MATCH", "ESCAPE"),
)
_AFTER_NAMES = frozenset({".", ")"})
_TYPED = ("BY", "UNION", "EXCEPT", "INTERSECT")  # in a statement with these, a literal differs from a call

Compute = Callable[[Sequence[str]], Sequence[Any]]  # returns the values of expressions, all at one moment
Defaults = Callable[[str], Mapping[str, str]]  # returns the defaults of the columns of a table, as SQL, by column
Call = tuple[int, int]  # the indexes of the first and the last token of a call


def with_values(sql: str, compute: Compute, defaults: Defaults) -> str:
    """Return a statement in which calls of functions of time and chance are replaced by their values, where possible.

    SQLite may refuse the result: a word such as ``current_date`` can also be the name of a column.
    """
    try:
        parser = InsertParser(sql)
    except (NotTokensError, NotUnderstoodError):
        return sql
    try:
        insert = parser.insert()
    except NotUnderstoodError:
        insert = None
    rows = _rows(parser, insert)
    single = {
        place
        for first, end in rows
        if not any(one.is_word("SELECT") for one in parser.tokens[first:end])
        for place in range(first, end)
    }
    calls = [call for call in _calls(parser) if not _is_random(parser.tokens[call[0]]) or call[0] in single]
    added = {} if insert is None else _omitted(insert, defaults, has_rows=bool(rows))
    texts = [sql[parser.tokens[first].start : parser.tokens[last].end] for first, last in calls]
    names = [(one.name or "").lower() for one in parser.tokens if one.kind == "quoted"]
    if any(text.lower() in name for name in names for text in set(texts)):
        return sql  # SQLite may have named a column of a subquery after the call
    texts += [text for _ in range(max(1, len(rows))) for text in added.values()]
    write = written_in(parser.tokens)
    values = [write(value) for value in _computed(texts, compute)]
    cuts: list[Cut] = [
        (parser.tokens[first].start, parser.tokens[last].end, value)
        for (first, last), value in zip(calls, values, strict=False)
    ]
    if insert is not None and added:
        cuts += _with_columns(parser, insert, list(added), rows, values[len(calls) :])
    return spliced(sql, sorted(cuts, key=lambda cut: cut[:2]))


def _computed(texts: Sequence[str], compute: Compute) -> list[Any]:
    """Return the values of some expressions; each random one has a value of its own."""
    drawn = list(map(_draws, texts))
    fixed = list(dict.fromkeys(text for text, draws in zip(texts, drawn, strict=True) if not draws))
    asked = fixed + [text for text, draws in zip(texts, drawn, strict=True) if draws]
    found = iter(compute(asked) if asked else ())
    values = {text: next(found) for text in fixed}
    return [next(found) if draws else values[text] for text, draws in zip(texts, drawn, strict=True)]


def written_in(found: Sequence[SqlToken]) -> Callable[[Any], str]:
    """Return the function that writes values into a statement, where they take the place of calls or parameters.

    A number after ORDER BY or GROUP BY would be that of a column, and a literal in a compound SELECT may give an
    affinity to its column. In such statements the value stays a call.
    """
    form = "ifnull({}, NULL)" if any(token.is_word(*_TYPED) for token in found) else "({})"
    return lambda value: form.format(value_as_sql(value))


def _calls(parser: InsertParser) -> Iterator[Call]:
    """Yield the calls of functions of time and chance whose arguments are literals."""
    found, at = parser.tokens, 0
    while at < len(found):
        end = _end(parser, at)
        if end is not None:
            yield at, end
            at = end
        at += 1


def _end(parser: InsertParser, at: int) -> int | None:
    """Return the last token of the call that begins at a token; None if no call with literal arguments begins there."""
    found = parser.tokens
    token, before = found[at], found[at - 1] if at else None
    if before is None or before.text in _AFTER_NAMES or not (before.kind == "op" or before.is_word(*_BEFORE)):
        return None  # a name, such as that of a column
    if token.is_word(*_WORDS):
        return at
    name = token.text.lower()
    if token.kind != "word" or name not in DATES | RANDOM or found[at + 1 : at + 2] == [] or found[at + 1].text != "(":
        return None
    end = parser.closing[at + 1]
    inside = found[at + 2 : end]
    if name == "random":
        return None if inside else end
    if name == "randomblob":
        is_small = len(inside) == 1 and inside[0].text.isdecimal() and len(inside[0].text) <= BLOB_DIGITS
        return end if is_small else None
    return end if all(map(_is_constant, inside)) else None


def _is_constant(token: SqlToken) -> bool:
    if token.kind == "op":
        return token.text in _INSIDE
    return token.kind in ("number", "string", "blob") or token.is_word("NULL", *_WORDS) or token.text.lower() in DATES


def _is_random(token: SqlToken) -> bool:
    return token.kind in ("word", "quoted") and (token.name or "").lower() in RANDOM


def _draws(text: str) -> bool:
    return any(map(_is_random, tokens(text)))


def _rows(parser: InsertParser, insert: Insert | None) -> list[Call]:
    """Return the parentheses around each row of an INSERT's VALUES; no rows for another statement."""
    if insert is None or insert.kind != "values":
        return []
    return [(first, end - 1) for first, end in parser.split(insert.first + 1, insert.end)]


def _omitted(insert: Insert, defaults: Defaults, *, has_rows: bool) -> dict[str, str]:
    """Return the columns that an INSERT leaves out and whose defaults depend on time or chance, with the defaults."""
    if insert.columns is None and insert.kind != "default":
        return {}
    named = {column.lower() for column in insert.columns or ()}
    found = {}
    for column, text in defaults(insert.table).items():
        if column.lower() in named:
            continue
        parts = tokens(text)
        called = (one for one, after in pairwise(parts) if after.text == "(")
        if any(_is_random(one) or one.text.lower() in DATES for one in called) or any(
            one.is_word(*_WORDS) for one in parts
        ):
            if _draws(text) and not (has_rows or insert.kind == "default"):
                return {}  # each row of a SELECT would need a value of its own
            found[column] = text
    return found


def _with_columns(
    parser: InsertParser, insert: Insert, columns: Sequence[str], rows: Sequence[Call], values: Sequence[str]
) -> list[Cut]:
    """Return the cuts that add columns to an INSERT; ``values`` are those of the first row, then of the second, ..."""
    names, found = ", ".join(map(quote, columns)), parser.tokens
    if insert.kind == "default":
        return [(found[insert.first].start, found[insert.end - 1].end, f"({names}) VALUES ({', '.join(values)})")]
    at = found[parser.closing[insert.target_end]].start
    cuts: list[Cut] = [(at, at, f", {names}")]
    if not rows:
        return cuts + materialized(parser, insert, "", f"*, {', '.join(values)}")
    width = len(columns)
    for number, (_, last) in enumerate(rows):
        at = found[last].start
        cuts.append((at, at, f", {', '.join(values[number * width : (number + 1) * width])}"))
    return cuts
