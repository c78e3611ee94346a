"""Finds the parts of an INSERT in its tokens, as far as they are needed to add a column to it.

The parser raises ``NotUnderstoodError`` for a text that deviates from SQLite's grammar for INSERT, or is ambiguous.
"""

from dataclasses import dataclass

from bedrockish.sqltext.tokenizer import SqlToken, parameter_numbers, tokens

_CLAUSES = ("ROLLBACK", "ABORT", "REPLACE", "FAIL", "IGNORE")


class NotUnderstoodError(Exception):
    """Raised for a statement whose form the parser does not know."""


@dataclass(frozen=True, slots=True)
class Insert:
    """The positions of the parts of an INSERT, as indexes of tokens; ``end`` is not included."""

    schema: str | None  # the name before the dot, or None
    table: str  # the table as it was named
    target_end: int  # the index after the table's name or alias
    columns: tuple[str, ...] | None  # names in the list of columns; None if the INSERT has no list
    kind: str  # kind of the source of rows: ``default``, ``values`` or ``select``
    first: int  # the index of the source's first token
    end: int  # the index after the source's last token


class InsertParser:
    """A parser over the tokens of one statement."""

    def __init__(self, sql: str) -> None:
        found = tokens(sql)
        if found and found[-1].text == ";":
            found.pop()
        self.tokens = found  # all tokens, without a semicolon at the end
        self.numbers = parameter_numbers(found)  # the number of each parameter, by the index of its token
        self.closing = _closing(found)  # the index of each closing parenthesis, by the index of the opening one
        self._at = 0

    def insert(self) -> Insert:
        """Return the parts of the statement.

        Raises:
            NotUnderstoodError: the statement is not an INSERT, or has a form that the parser does not know.
        """
        if self._word("WITH"):
            self._skip_ctes()
        if self._word("INSERT"):
            if self._word("OR") and not self._word(*_CLAUSES):
                raise NotUnderstoodError
        elif not self._word("REPLACE"):
            raise NotUnderstoodError
        if not self._word("INTO"):
            raise NotUnderstoodError
        schema, table = None, self._name()
        if self._op("."):
            schema, table = table, self._name()
        if self._word("AS"):
            self._name()
        target_end = self._at
        columns = self._columns() if self._peek() == "(" else None
        kind, first = self._source(), self._at
        end = self._end(kind, first)
        return Insert(schema, table, target_end, columns, kind, first, end)

    def _peek(self) -> str:
        return self.tokens[self._at].text if self._at < len(self.tokens) else ""

    def _word(self, *keywords: str) -> bool:
        if self._at < len(self.tokens) and self.tokens[self._at].is_word(*keywords):
            self._at += 1
            return True
        return False

    def _op(self, text: str) -> bool:
        if self._peek() == text and self.tokens[self._at].kind == "op":
            self._at += 1
            return True
        return False

    def _name(self) -> str:
        name = self.tokens[self._at].name if self._at < len(self.tokens) else None
        if name is None:
            raise NotUnderstoodError
        self._at += 1
        return name

    def _group(self) -> None:
        if self._peek() != "(":
            raise NotUnderstoodError
        self._at = self.closing[self._at] + 1

    def _skip_ctes(self) -> None:
        if self._word("RECURSIVE") and (self._peek() == "(" or self.tokens[self._at].is_word("AS")):
            raise NotUnderstoodError  # a common table that is named RECURSIVE
        while True:
            self._name()
            if self._peek() == "(":
                self._group()
            if not self._word("AS"):
                raise NotUnderstoodError
            if self._word("NOT"):
                self._word("MATERIALIZED")
            else:
                self._word("MATERIALIZED")
            self._group()
            if not self._op(","):
                return

    def _columns(self) -> tuple[str, ...]:
        end = self.closing[self._at]
        inside = self.tokens[self._at + 1 : end]
        names = [token.name for token in inside[::2]]
        if len(inside) % 2 == 0 or any(token.text != "," for token in inside[1::2]):
            raise NotUnderstoodError
        self._at = end + 1
        found = tuple(name for name in names if name is not None)
        if len(found) != len(names):
            raise NotUnderstoodError
        return found

    def _source(self) -> str:
        """Return the kind of the source of rows that follows, without consuming it."""
        if self._at >= len(self.tokens):
            raise NotUnderstoodError
        token = self.tokens[self._at]
        if token.is_word("DEFAULT"):
            return "default"
        if token.is_word("SELECT", "WITH"):
            return "select"
        if not token.is_word("VALUES"):
            raise NotUnderstoodError
        at = self._at + 1
        while at < len(self.tokens) and self.tokens[at].text == "(":
            at = self.closing[at] + 1
            if at == len(self.tokens) or self.tokens[at].is_word("ON", "RETURNING"):
                return "values"
            if self.tokens[at].text != ",":
                break
            at += 1
        return "select"  # the VALUES that begins here is a part of a compound SELECT

    def _end(self, kind: str, first: int) -> int:
        """Return the index after the rows to insert, where ON CONFLICT, RETURNING or the end of the text follows."""
        if kind == "default":
            if not self.tokens[first + 1 : first + 2] or not self.tokens[first + 1].is_word("VALUES"):
                raise NotUnderstoodError
            return first + 2
        at = first
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.text == "(":
                at = self.closing[at] + 1
                continue
            if token.is_word("RETURNING") or self.on_conflict(at):
                return at
            at += 1
        return at

    def on_conflict(self, at: int) -> bool:
        """Return whether an ON CONFLICT clause begins at a token, and not the ON of a join."""
        return (
            at + 2 < len(self.tokens)
            and self.tokens[at].is_word("ON")
            and self.tokens[at + 1].is_word("CONFLICT")
            and (self.tokens[at + 2].text == "(" or self.tokens[at + 2].is_word("DO"))
        )

    def split(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the index of the first token of each part between commas, and the index after the part."""
        parts, begin, at = [], first, first
        while at < end:
            if self.tokens[at].text == "(":
                at = self.closing[at]
            elif self.tokens[at].text == ",":
                parts.append((begin, at))
                begin = at + 1
            at += 1
        parts.append((begin, end))
        if any(one == other for one, other in parts):
            raise NotUnderstoodError
        return parts


def _closing(found: list[SqlToken]) -> dict[int, int]:
    closing, opened = {}, []
    for place, token in enumerate(found):
        if token.kind != "op":
            continue
        if token.text == "(":
            opened.append(place)
        elif token.text == ")":
            if not opened:
                raise NotUnderstoodError
            closing[opened.pop()] = place
        elif token.text == ";":
            raise NotUnderstoodError
    if opened:
        raise NotUnderstoodError
    return closing
