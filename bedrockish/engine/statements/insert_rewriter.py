"""Rewrites INSERTs that leave a row's id to SQLite, so that the node assigns the id.

Calls of ``bedrockish_id('table')`` are inserted into the client's text, as one more column or around a value that may
be NULL. The remaining text is unchanged, and parameters keep their numbers.

    INSERT INTO t(a) VALUES (?)         INSERT INTO t(a, "id") VALUES (?, bedrockish_id('t'))
    INSERT INTO t VALUES (?, 'x')       INSERT INTO t VALUES (bedrockish_id('t', ?), 'x')     when ? is NULL
    INSERT INTO t(a) SELECT b FROM u    INSERT INTO t(a, "id") WITH bedrockish_rows AS MATERIALIZED (SELECT b FROM u)
                                        SELECT *, bedrockish_id('t') FROM bedrockish_rows

The rows to insert are materialized first, so that ids follow their ORDER BY. A text that the parser does not understand
is left unchanged: SQLite then takes the highest id plus one, which is correct, but conflicts with concurrent INSERTs of
the same kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bedrockish.access_sets.table_layout import CapturedTable
from bedrockish.engine.statements.insert_parser import Insert, InsertParser, NotUnderstoodError
from bedrockish.sqltext.tokenizer import Cut, NotTokensError, spliced
from bedrockish_journal.storage.table_layout import ROWID_NAMES, quote

FUNCTION = "bedrockish_id"
ROWS = "bedrockish_rows"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An INSERT whose ids the node assigns."""

    table: str  # the table, by its name in the schema
    sql: str  # the text to run
    # Positions, from 0, of the parameters that may be the id: ``sql`` is run only if one of them is NULL, and the
    # client's own text otherwise. Empty: ``sql`` is always run.
    nulls: tuple[int, ...]


def rewrite(sql: str, tables: Mapping[str, CapturedTable]) -> Rewritten | None:
    """Return the INSERT to run instead of a statement that SQLite accepts; None to run the statement as it is."""
    try:
        parser = InsertParser(sql)
        insert = parser.insert()
    except (NotTokensError, NotUnderstoodError):
        return None
    table = _find(insert, tables)
    if table is None or not table.rowid:
        return None
    try:
        return _Splicer(sql, parser, insert, table).run()
    except NotUnderstoodError:
        return None


def _find(insert: Insert, tables: Mapping[str, CapturedTable]) -> CapturedTable | None:
    if insert.schema is not None and insert.schema.lower() != "main":
        return None
    exact = tables.get(insert.table)
    if exact is not None:
        return exact
    wanted = insert.table.lower()
    return next((table for name, table in tables.items() if name.lower() == wanted), None)


def materialized(parser: InsertParser, insert: Insert, names: str, chosen: str) -> list[Cut]:
    """Return the cuts after which an INSERT collects its rows first.

    Args:
        names: the names of the columns of these rows in parentheses, or an empty text.
        chosen: the expressions to insert for each of these rows.
    """
    # Without a WHERE before it, SQLite would take ON CONFLICT for the ON of a join.
    where = " WHERE true" if parser.on_conflict(insert.end) else ""
    begin, end = parser.tokens[insert.first].start, parser.tokens[insert.end - 1].end
    return [
        (begin, begin, f"WITH {ROWS}{names} AS MATERIALIZED ("),
        (end, end, f") SELECT {chosen} FROM {ROWS}{where} "),
    ]


class _Splicer:
    """Puts calls of ``bedrockish_id`` into one INSERT."""

    def __init__(self, sql: str, parser: InsertParser, insert: Insert, table: CapturedTable) -> None:
        assert table.rowid
        self._sql, self._parser, self._insert, self._table = sql, parser, insert, table
        self._tokens = parser.tokens
        self._rowid = table.rowid
        self._all = tuple(table.columns[place] for place in table.writable)
        name = table.name.replace("'", "''")
        self._given = f"{FUNCTION}('{name}')"
        self._open = f"{FUNCTION}('{name}', "
        self._cuts: list[Cut] = []
        self._nulls: dict[int, None] = {}
        self._always = False

    def run(self) -> Rewritten | None:
        insert = self._insert
        place = self._place()
        width = len(self._all if insert.columns is None else insert.columns)
        if insert.kind == "default":
            if insert.columns is not None:
                return None
            self._insert_after(insert.target_end - 1, f"({self._rowid})")
            self._replace(insert.first, insert.end, f"SELECT {self._given}")
            self._always = True
        elif place is None:
            self._name_column()
            self._add_values()
            self._always = True
        elif insert.kind == "select":
            self._wrap_select(place, width)
        elif self._table.triggers:
            self._wrap_once(place, width)
        else:
            self._wrap_rows(place, width)
        if not self._always and not self._nulls:
            return None
        sql = spliced(self._sql, sorted(self._cuts, key=lambda cut: cut[:2]))
        return Rewritten(self._table.name, sql, () if self._always else tuple(self._nulls))

    def _place(self) -> int | None:
        """Return the index of the id among the named columns, or None if it is not among them."""
        columns = self._insert.columns
        table = self._table
        if columns is None:
            return None if table.alias is None else table.writable.index(table.alias)
        names = {*ROWID_NAMES} - {column.lower() for column in table.columns}
        if table.alias is not None:
            names |= {table.columns[table.alias].lower()}
        places = [place for place, column in enumerate(columns) if column.lower() in names]
        if len(places) > 1:
            raise NotUnderstoodError
        return places[0] if places else None

    # -- where the id is left out ----------------------------------------------------------------------------------

    def _name_column(self) -> None:
        insert = self._insert
        if insert.columns is None:
            names = ", ".join(map(quote, self._all))
            self._insert_after(insert.target_end - 1, f"({names}, {self._rowid})")
        else:
            self._insert_after(self._parser.closing[insert.target_end] - 1, f", {self._rowid}")

    def _add_values(self) -> None:
        insert = self._insert
        if insert.kind == "select" or self._table.triggers:
            self._materialize("", f"*, {self._given}")
            return
        for first in self._rows():
            self._insert_after(self._parser.closing[first] - 1, f", {self._given}")

    def _rows(self) -> list[int]:
        """Return the indexes of the opening parentheses of the rows of VALUES."""
        return [begin for begin, _ in self._parser.split(self._insert.first + 1, self._insert.end)]

    # -- where there is an id that may be NULL ---------------------------------------------------------------------

    def _wrap_rows(self, place: int, width: int) -> None:
        for first in self._rows():
            parts = self._parser.split(first + 1, self._parser.closing[first])
            if len(parts) != width:
                raise NotUnderstoodError
            self._wrap(*parts[place])

    def _wrap_once(self, place: int, width: int) -> None:
        """Materialize the rows of VALUES, because SQLite evaluates a row's id twice if the table has triggers."""
        self._wrap_rows(place, width)
        self._cuts.clear()
        self._materialize_with(place, width)

    def _wrap(self, first: int, end: int) -> None:
        """Wrap a value so that NULL becomes an id, and note whether the client's own text can run.

        It can run if the value is a literal other than NULL, or a parameter to which the client gives a value.
        """
        only = self._tokens[first] if end == first + 1 else None
        if only is not None and only.is_word("NULL"):
            self._replace(first, end, self._given)
            self._always = True
        elif only is not None and only.kind == "param":
            self._nulls[self._parser.numbers[first] - 1] = None
            self._enclose(first, end)
        else:
            self._always = self._always or not self._is_literal(first, end)
            self._enclose(first, end)  # the function records this id, so that no other row of the statement gets it

    def _is_literal(self, first: int, end: int) -> bool:
        if end == first + 2 and self._tokens[first].text in ("-", "+"):
            first += 1
        return end == first + 1 and self._tokens[first].kind in ("number", "string", "blob")

    def _wrap_select(self, place: int, width: int) -> None:
        """Assign ids if a SELECT has NULL or a parameter for the id; leave other SELECTs, which mostly copy ids."""
        insert = self._insert
        at = insert.first
        while at < insert.end and not self._tokens[at].is_word("SELECT"):
            at = self._parser.closing[at] + 1 if self._tokens[at].text == "(" else at + 1
        at += 1
        if at < insert.end and self._tokens[at].is_word("ALL", "DISTINCT"):
            at += 1
        parts = self._parser.split(at, insert.end) if at < insert.end else []
        if len(parts) <= place or any(self._tokens[end - 1].text == "*" for _, end in parts[:place]):
            return
        first, end = parts[place]
        only = self._tokens[first]
        ended = end == first + 1 or self._tokens[first + 1].is_word("FROM", "WHERE", "UNION", "AS", "ORDER", "LIMIT")
        if not ended:
            return
        if only.is_word("NULL"):
            self._always = True
        elif only.kind == "param":
            self._nulls[self._parser.numbers[first] - 1] = None
        else:
            return
        self._materialize_with(place, width)

    def _materialize_with(self, place: int, width: int) -> None:
        names = [f"c{number}" for number in range(width)]
        chosen = [f"{self._open}{name})" if number == place else name for number, name in enumerate(names)]
        self._materialize(f"({', '.join(names)})", ", ".join(chosen))

    # -- splicing --------------------------------------------------------------------------------------------------

    def _materialize(self, names: str, chosen: str) -> None:
        self._cuts += materialized(self._parser, self._insert, names, chosen)

    def _enclose(self, first: int, end: int) -> None:
        self._insert_before(first, self._open)
        self._insert_after(end - 1, ")")

    def _insert_before(self, token: int, text: str) -> None:
        at = self._tokens[token].start
        self._cuts.append((at, at, text))

    def _insert_after(self, token: int, text: str) -> None:
        at = self._tokens[token].end
        self._cuts.append((at, at, text))

    def _replace(self, first: int, end: int, text: str) -> None:
        self._cuts.append((self._tokens[first].start, self._tokens[end - 1].end, text))
