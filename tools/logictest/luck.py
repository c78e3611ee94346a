"""Choices, tables and expressions for a generated file. Everything follows from a seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

CORNERS = (
    *("NULL", "NULL", "0", "1", "2", "3", "-1", "10", "255", "9223372036854775807", "-9223372036854775808"),
    *("9007199254740993", "4294967296", "2147483648", "0.0", "-0.0", "0.5", "1.0", "2.5", "1e300", "-1e-300", "9e999"),
    *("-9e999", "9223372036854775808.0", "0.1", "''", "'a'", "'A'", "'b'", "'a '", "' 1'", "'1'", "'1.0'", "'0x10'"),
    *("'abc'", "'é'", "'ÿ%_'", "'null'", "'1e3'", "x''", "x'00'", "x'61'", "x'ff00'", "char(97,0,98)", "zeroblob(3)"),
    *('\'{"a":1,"b":[2,null]}\'', "'[1,\"x\"]'", "true", "1=2"),
)
FEW = ("1", "2", "3", "4", "5", "NULL", "'a'", "'b'", "'A'")
TYPES = ("", "INTEGER", "INT", "TEXT", "REAL", "NUMERIC", "BLOB", "VARCHAR(10)", "DATE")
STRICT_TYPES = ("INTEGER", "TEXT", "REAL", "BLOB", "ANY")
COLLATIONS = ("BINARY", "NOCASE", "RTRIM")
ONE = (
    "typeof",
    "quote",
    "abs",
    "length",
    "lower",
    "upper",
    "hex",
    "trim",
    "unicode",
    "json_quote",
    "round",
)


@dataclass
class Table:
    """A table as a generated file knows it.

    Attributes:
        name: quoted if it has to be.
        columns: those that can be written.
        read: those that can be read only, as generated ones.
        key: the columns of its primary key, if it has one.
        needs: columns that every INSERT names, so that no node has to give an id that could be seen.
        is_view: whether it is a view.
        deferred: whether a foreign key of its may be checked at COMMIT only.
    """

    name: str
    columns: list[str]
    read: list[str] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    is_view: bool = False
    deferred: bool = False

    @property
    def all(self) -> list[str]:
        """Return all columns."""
        return self.columns + self.read


class Luck:
    """Draws what a file is made of."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(f"logic {seed}")

    def below(self, count: int) -> int:
        return self._random.randrange(count)

    def chance(self, percent: float) -> bool:
        return self._random.random() * 100 < percent

    def one(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]

    def some(self, options: Sequence[T], least: int = 1, most: int = 3) -> list[T]:
        """Return a few of them, each once, in any order."""
        most = min(most, len(options))
        return self._random.sample(list(options), min(most, least + self.below(max(1, most - least + 1))))

    def maybe(self, percent: float, text: str) -> str:
        return text if self.chance(percent) else ""

    # --- values and expressions ---

    def number(self) -> str:
        return str(1 + self.below(12))

    def value(self) -> str:
        """A literal; most are of a few, so that rows have to do with each other."""
        return self.one(FEW) if self.chance(60) else self.one(CORNERS)

    def expr(self, columns: Sequence[str], depth: int = 2) -> str:
        """An expression over columns."""
        if depth <= 0 or self.chance(25):
            return self.one(columns) if columns and self.chance(75) else self.value()
        forms: list[Callable[[Sequence[str], int], str]] = [self._binary, self._function, self._other, self.predicate]
        return self.one(forms)(columns, depth)

    def _binary(self, columns: Sequence[str], depth: int) -> str:
        operator = self.one(("+", "-", "*", "/", "%", "||", "&", "|", "<<", ">>", "->>"))
        if operator == "->>":
            return f"(iif(json_valid({self.expr(columns, 0)}), {self.expr(columns, 0)}, '[0]') ->> '$[0]')"
        return f"({self.expr(columns, depth - 1)} {operator} {self.expr(columns, depth - 1)})"

    def _function(self, columns: Sequence[str], depth: int) -> str:
        a, b = self.expr(columns, depth - 1), self.expr(columns, depth - 1)
        if self.chance(60):
            return f"{self.one(ONE)}({a})"
        return self.one(
            (
                *(
                    f"coalesce({a}, {b})",
                    f"ifnull({a}, {b})",
                    f"nullif({a}, {b})",
                    f"substr({a}, {1 + self.below(3)}, 2)",
                ),
                f"instr({a}, {b})",
                *(f"replace({a}, 'a', 'bb')", f"max({a}, {b})", f"min({a}, {b})", f"iif({a}, {b}, 0)"),
                *(f"printf('%d|%s', {a}, {b})", f"json_array({self.value()}, 1)", f"round({a}, 1)", f"sign({a})"),
                *(f"json_object('k', quote({a}))", f"concat({a}, {b})", f"octet_length({a})", f"likely({a})"),
            )
        )

    def _other(self, columns: Sequence[str], depth: int) -> str:
        a, b, c = (self.expr(columns, depth - 1) for _ in range(3))
        return self.one(
            (
                f"CASE WHEN {a} THEN {b} ELSE {c} END",
                f"CASE {a} WHEN {b} THEN {c} WHEN 1 THEN 'one' END",
                f"CAST({a} AS {self.one(TYPES[1:7])})",
                f"(-{a})",
                f"(~{a})",
                f"({a} COLLATE {self.one(COLLATIONS)})",
            )
        )

    def predicate(self, columns: Sequence[str], depth: int = 1) -> str:
        """A condition."""
        a, b = self.expr(columns, depth - 1), self.expr(columns, depth - 1)
        column = self.one(columns) if columns else self.value()
        return self.one(
            (
                *(f"{column} {self.one(('=', '<', '>', '<=', '>=', '<>', 'IS', 'IS NOT'))} {self.value()}",) * 4,
                *(f"{column} IN ({self.value()}, {self.value()}, {self.value()})",) * 2,
                *(f"{column} BETWEEN {self.value()} AND {self.value()}", f"{column} IS NULL", f"{column} NOTNULL"),
                *(f"{column} LIKE '{self.one(('a%', '%b', '_', 'A%', '1%'))}'", f"{column} GLOB '{self.one('a1')}*'"),
                *(f"({a} = {b} OR {column} = {self.value()})", f"NOT ({column} > {self.value()})", f"{a} < {b}"),
                *(f"({column} = {self.value()} COLLATE NOCASE)", f"({column}, {a}) > ({self.value()}, {b})"),
            )
        )
