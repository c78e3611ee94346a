"""The size of a statement after SQLite's expansion of its views, common tables and generated columns.

While it compiles, SQLite replaces each mention of such a name by the whole text, and cannot be interrupted. A chain of
views, each of which names the one before it twice, doubles with each link, so definitions of 500 bytes can take all
memory. The size is computed in tokens from the texts alone, before SQLite gets the statement. The computed size is
never too small; it is too large where a column has the name of a view.

With a statement, SQLite compiles all triggers that the statement may fire, directly or by other triggers. It compiles
each of them once, and once more for each conflict clause (such as OR REPLACE) with which other triggers may fire it;
the number of these other triggers does not matter. So the sizes of these triggers are added, and the sum is multiplied
by the number of their conflict clauses plus one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from bedrockish.access_sets.definitions import Definition, Definitions, folded
from bedrockish.errors import TooLargeError
from bedrockish.sqltext.tokenizer import NotTokensError, SqlToken, walk

LOOP_TOKENS = 5_000  # tokens that a statement may add in the loop: SQLite takes about 4 ms for them
STATEMENT_TOKENS = 500_000  # tokens that a statement may add at all: SQLite takes half a second and some 100 MB
DEFINITION_TOKENS = 50_000  # tokens that a definition may have: nodes describe all views when they start
AGGREGATES = CONSTRAINTS = 2_000  # limits for a statement and for a table: SQLite compares each with all others
LIGHT = 64  # a view of fewer tokens is not counted

_BEFORE_TABLES = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "IN", "TABLE", "ON", ",", "(", "."})
_MAY_COMPUTE = re.compile(r"\bAS\s*+(?:\(|--|/\*)", re.IGNORECASE)  # a comment may hide the parenthesis
_AGGREGATE = re.compile(
    r"\b(?:(?:sum|total|avg|count|min|max|median)|\w*_(?:concat|agg|array|object|cont|disc))\s*\(", re.I
)
_CONSTRAINT = re.compile(r"\b(?:unique|primary|foreign|references|check)\b", re.IGNORECASE)
_BETWEEN = frozenset({"NOT", "MATERIALIZED"})
_QUOTE = re.compile("[\"`']")
_CLAUSES = {"abort", "fail", "ignore", "replace", "rollback"}


@dataclass(slots=True)
class TextSize:
    """The size of a text, and how often it mentions each name."""

    size: int = 0  # how many tokens it has
    tables: Counter[str] = field(default_factory=Counter)  # the names at places where SQL expects a table
    names: Counter[str] = field(default_factory=Counter)  # the names at all places

    def add(self, other: "TextSize") -> None:
        """Add another text, which is a part of this one."""
        self.size += other.size
        self.tables.update(other.tables)
        self.names.update(other.names)


@dataclass(slots=True)
class ParsedStatement:
    """A statement: the whole text, and the texts in it that have names."""

    whole: TextSize
    named: dict[str, TextSize]  # the texts of a query's common tables, or of a table's generated columns, by name
    is_table: bool  # whether the statement defines a table
    defines: str  # the folded name that a CREATE TABLE or CREATE VIEW defines, or empty


T = TypeVar("T")


class Expansion:
    """The sizes of the texts that the names of a schema stand for.

    Args:
        definitions: the schema; None: a schema without names.
        known: the sizes under an earlier schema, or on another connection; unchanged definitions are not parsed again.
    """

    def __init__(self, definitions: Definitions | None = None, known: "Expansion | None" = None) -> None:
        self._definitions = definitions
        self._parsed: dict[
            str, list[tuple[Definition, ParsedStatement]]
        ] = {}  # table or view -> the texts that it stands for
        self._views: dict[str, ParsedStatement] = {}
        self._columns: dict[str, int] = {}
        self._tables: dict[str, int] = {}
        self._triggers: dict[str, int] = {}  # table or view -> the tokens of all triggers that writing it may fire
        # The longest part of each name without a quote: a text that has none of these parts mentions none of the names.
        self._parts: set[str] = set()
        if definitions is not None:
            self._read(definitions, known)
            self._learn()

    def _read(self, definitions: Definitions, known: "Expansion | None") -> None:
        before = None
        if known is not None and known._definitions is not None:
            before, self._parsed = known._definitions, dict(known._parsed)
        for name in definitions.changed_since(before):
            self._parsed.pop(name, None)
            rows = [row for row in definitions.by_table.get(name, ()) if _is_written_out(row)]
            found = [(row, parsed) for row in rows if (parsed := parse(row.sql or "")) is not None]
            if found:
                self._parsed[name] = found

    def _learn(self) -> None:
        rows = [one for found in self._parsed.values() for one in found]
        for row, parsed in rows:
            if row.kind == "table":
                self._add_table(folded(row.name), parsed)
        self._views = {folded(row.name): parsed for row, parsed in rows if row.kind == "view"}
        sizes = self._sizes_of_views(self._views)
        triggers: dict[str, _Fired] = {}
        for row, parsed in rows:
            if row.kind == "trigger":
                triggers.setdefault(folded(row.table), _Fired()).add(self._size(parsed, sizes), parsed.whole.names)
        with_triggers = set(triggers)
        for one in triggers.values():
            one.names &= with_triggers
        fired = {name: _size_of_fired(name, triggers) for name in triggers}
        self._triggers = {name: size for name, size in fired.items() if size > LIGHT}
        self._tables.update((name, size) for name, size in sizes.items() if size > LIGHT)
        names = (*self._tables, *self._columns, *self._triggers)
        self._parts = {max(_QUOTE.split(name), key=len) for name in names}

    def _add_table(self, name: str, table: ParsedStatement) -> None:
        sizes = _sizes_of_columns(table.named)
        self._tables[name] = sum(sizes.values())
        for column, size in sizes.items():
            if size > LIGHT:
                self._columns[column] = max(size, self._columns.get(column, 0))

    def _sizes_of_views(self, views: Mapping[str, ParsedStatement]) -> dict[str, int]:
        """Return the size of each view after the expansion of the views and tables that it names."""
        found: dict[str, int] = {}
        for name in _after_their_parts(views, lambda one: one.whole.tables):
            found[name] = self._size(views[name], found)
        return found

    def _size(self, parsed: ParsedStatement, views: Mapping[str, int]) -> int:
        """Return the tokens of a statement after the expansion of the views and tables that it names."""

        def size_of(name: str) -> int:
            return views[name] if name in views else self._tables.get(name, 0)

        def sum_of(text: TextSize, named: Mapping[str, int]) -> int:
            found = text.size
            for name, count in text.tables.items():
                found += count * (named[name] if name in named else size_of(name))
            for name, count in text.names.items() if self._columns else ():
                found += count * self._columns.get(name, 0)
            return found

        named: dict[str, int] = {}
        for name in _after_their_parts(parsed.named, lambda one: one.tables):
            named[name] = sum_of(parsed.named[name], named)
        return sum_of(parsed.whole, named)

    def added(self, sql: str) -> int:
        """Return the number of tokens that the expansion of views and tables adds to a statement.

        Raises:
            TooLargeError: the statement gains more than ``STATEMENT_TOKENS``, or defines a text that is too large.
        """
        _check_counts(sql)
        if not self._may_add(sql):
            return 0
        parsed = parse(sql)
        if parsed is None:
            return 0  # the text has an error, which SQLite reports
        added = self._size(parsed, {}) - parsed.whole.size
        added += sum(self._triggers.get(name, 0) for name in parsed.whole.tables) if self._triggers else 0
        if added > STATEMENT_TOKENS:
            raise TooLargeError(
                f"the statement has {added} tokens more once its views, common tables and generated columns are "
                f"expanded, and at most {STATEMENT_TOKENS} can be compiled; mention each of them fewer times, or "
                "keep the rows of one in a table",
                sql=sql,
                limit=STATEMENT_TOKENS,
            )
        if parsed.defines:
            self._check_definition(parsed, sql)
        return added

    def _may_add(self, sql: str) -> bool:
        """Return whether a statement must be parsed; this search costs a hundredth of parsing a long text."""
        text = folded(sql)
        if "with" in text or "create" in text or _MAY_COMPUTE.search(sql):
            return True
        return any(part in text for part in self._parts)

    def _check_definition(self, parsed: ParsedStatement, sql: str) -> None:
        """Check the size of the table or view that a statement defines, and of the views that name it."""
        if parsed.is_table:
            sizes = _sizes_of_columns(parsed.named)
            name, size = parsed.defines, sum(sizes.values())
        else:
            before = self._sizes_of_views(self._views)
            found = self._sizes_of_views({**self._views, parsed.defines: parsed})
            grown = {name: size for name, size in found.items() if size > before.get(name, 0)}
            name, size = max(grown.items(), key=itemgetter(1), default=(parsed.defines, 0))
        if size > DEFINITION_TOKENS:
            raise TooLargeError(
                f"{name} has {size} tokens once the views or generated columns that it names are expanded, and a "
                f"definition may have {DEFINITION_TOKENS}; name each of them fewer times, or store what they compute",
                sql=sql,
                limit=DEFINITION_TOKENS,
            )


def _check_counts(sql: str) -> None:
    """Check that a statement does not have too many aggregate functions, nor a table too many constraints."""
    defines = sql.lstrip()[:6].upper() == "CREATE"
    what, pattern, most = (
        ("constraints", _CONSTRAINT, CONSTRAINTS) if defines else ("aggregates", _AGGREGATE, AGGREGATES)
    )
    if len(sql) < 3 * most or sum(1 for _ in pattern.finditer(sql)) <= most:
        return
    try:
        tokens = list(walk(sql))
    except NotTokensError:
        return  # the text has an error, which SQLite reports
    words = [
        f"{one.text}(" if follows.text == "(" else one.text for one, follows in pairwise(tokens) if one.kind == "word"
    ]
    count = sum(pattern.fullmatch(word) is not None or (defines and pattern.match(word) is not None) for word in words)
    if count > most:
        raise TooLargeError(
            f"the statement has {count} {what}, and at most {most} can be compiled; split it into several",
            sql=sql,
            limit=most,
        )


def _is_written_out(row: Definition) -> bool:
    """Return whether SQLite writes out a definition's text at each mention: a view, a trigger or generated columns."""
    if row.kind in ("view", "trigger"):
        return True
    return row.kind == "table" and row.sql is not None and _MAY_COMPUTE.search(row.sql) is not None


@dataclass(slots=True)
class _Fired:
    """The triggers of a table: their size, the conflict clauses that they may use, and the names that they mention."""

    size: int = 0
    clauses: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add(self, size: int, names: Iterable[str]) -> None:
        """Add a trigger."""
        self.size += size
        self.names.update(names)
        self.clauses.update(self.names & _CLAUSES)


def _size_of_fired(table: str, triggers: Mapping[str, _Fired]) -> int:
    """Return the tokens of all triggers that a statement on a table may fire, given the triggers of each table.

    Counting ends at ``STATEMENT_TOKENS``.
    """
    size, clauses = 0, {"default"}
    seen, waiting = {table}, [table]
    while waiting and size <= STATEMENT_TOKENS:
        one = triggers[waiting.pop()]
        size += one.size
        clauses |= one.clauses
        fired = one.names - seen
        seen |= fired
        waiting += fired
    return size * len(clauses)


def _sizes_of_columns(texts: Mapping[str, TextSize]) -> dict[str, int]:
    """Return the sizes of a table's generated columns, given their texts, which may name each other."""
    found: dict[str, int] = {}
    for name in _after_their_parts(texts, lambda one: one.names):
        found[name] = texts[name].size + sum(count * found.get(part, 0) for part, count in texts[name].names.items())
    return found


def _after_their_parts(texts: Mapping[str, T], names: Callable[[T], Iterable[str]]) -> Iterator[str]:
    """Yield the names of texts, each after the names of the texts in it; a cycle is cut at its first name."""
    seen: set[str] = set()
    for first in texts:
        if first in seen:
            continue
        seen.add(first)
        stack = [(first, iter(names(texts[first])))]
        while stack:
            name, parts = stack[-1]
            part = next((one for one in parts if one in texts and one not in seen), None)
            if part is None:
                stack.pop()
                yield name
            else:
                seen.add(part)
                stack.append((part, iter(names(texts[part]))))


@dataclass(slots=True)
class _Frame:
    """The text in a pair of parentheses, its name (may be empty), and the name right before the parentheses."""

    name: str
    before: str
    text: TextSize


def parse(sql: str) -> ParsedStatement | None:
    """Return the texts in a statement, with sizes and names; None if it cannot be cut into tokens."""
    try:
        return _Parser(walk(sql)).run()
    except NotTokensError:
        return None


class _Parser:
    def __init__(self, tokens: Iterator[SqlToken]) -> None:
        self._tokens = tokens
        self._named: dict[str, TextSize] = {}
        self._frames = [_Frame("", "", TextSize())]
        self._column = ""  # in the definition of a table, the column that is being defined
        self._closed = ""  # the name before the last closed pair of parentheses
        self._candidate = ""  # the name of the text in parentheses that may open at the next token

    def run(self) -> ParsedStatement:
        head: list[str] = []  # the first words of the statement, without EXPLAIN
        is_table = False
        before, name_before = "", ""
        for token in self._tokens:
            word = token.text.upper() if token.kind == "word" else token.text
            name = folded(token.name or "") if token.kind in ("word", "quoted", "string") else ""
            if len(head) < _HEAD and (head or word not in _EXPLAINS):
                head.append(name or word)
                is_table = head[0] == "create" and "table" in head
            if is_table and len(self._frames) == 2 and before in ("(", ","):
                self._column = name
            self._frames[-1].text.size += 1
            self._add(token, word, name, before, name_before, is_table=is_table)
            before, name_before = word, name
        while len(self._frames) > 1:
            self._close()
        return ParsedStatement(self._frames[0].text, self._named, is_table, _defined(head))

    def _add(self, token: SqlToken, word: str, name: str, before: str, name_before: str, *, is_table: bool) -> None:
        """Add a token to the text of the innermost parentheses."""
        depth, text = len(self._frames), self._frames[-1].text
        if word == "(":
            self._frames.append(_Frame(self._candidate, name_before, TextSize()))
            self._candidate = ""
        elif word == ")" and depth > 1:
            self._close()
        elif word == "AS" and token.kind == "word":
            of_query = self._closed if before == ")" else name_before
            self._candidate = (self._column if depth == 2 else "") if is_table else of_query
        elif not (word in _BETWEEN and self._candidate):
            self._candidate = ""
            if name:
                text.names[name] += 1
                if before in _BEFORE_TABLES:
                    text.tables[name] += 1

    def _close(self) -> None:
        frame = self._frames.pop()
        self._frames[-1].text.add(frame.text)
        self._closed = frame.before
        if frame.name:
            self._named.setdefault(frame.name, TextSize()).add(frame.text)


_HEAD = 8
_EXPLAINS = frozenset({"EXPLAIN", "QUERY", "PLAN"})
_OPTIONAL = frozenset({"temp", "temporary", "if", "not", "exists"})


def _defined(head: list[str]) -> str:
    """Return the name that a CREATE TABLE or CREATE VIEW gives, from its first words."""
    words = [word for word in head if word not in _OPTIONAL]
    if len(words) < 3 or words[0] != "create" or words[1] not in ("table", "view"):
        return ""
    at = 4 if words[3:4] == ["."] else 2
    return words[at] if at < len(words) else ""
