"""Statements for a generated file: every shape of SELECT, and changes of rows."""

from collections.abc import Callable

from tools.logictest.luck import Luck, Table

JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", ",")
FRAMES = (
    "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW",
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
)
OR = ("", "", "", " OR IGNORE", " OR REPLACE", " OR ABORT", " OR ROLLBACK")
OR_IN_TRANSACTION = (*OR, " OR FAIL", " OR FAIL")
AGGREGATES = ("count(*)", "count({0})", "sum({0})", "total({0})", "avg({0})", "min({0})", "max({0})",
              "group_concat(quote({0}), ',' ORDER BY quote({0}))", "count(DISTINCT {0})",
              "sum({0}) FILTER (WHERE {1} > 1)", "json_group_array(quote({0}) ORDER BY quote({0}))")  # fmt: skip


class Queries:
    """Draws statements over tables."""

    def __init__(self, luck: Luck, tables: list[Table], views: list[Table]) -> None:
        self.luck, self.tables, self.views = luck, tables, views

    def _source(self) -> Table:
        return self.luck.one([*self.tables, *self.tables, *self.views])

    # --- what reads ---

    def select(self) -> str:
        """Return any SELECT."""
        forms: list[Callable[[], str]] = [
            *(
                self._plain,
                self._plain,
                self._join,
                self._join,
                self._grouped,
                self._compound,
                self._nested,
                self._nested,
            ),
            *(self._with, self._recursive, self._window, self._json, self._values, self._scalar, self._triple),
        ]
        return self.luck.one(forms)()

    def _where(self, columns: list[str]) -> str:
        luck = self.luck
        if luck.chance(20):
            return ""
        parts = [luck.predicate(columns, 1) for _ in range(1 + luck.below(2))]
        return f" WHERE {luck.one((' AND ', ' OR ')).join(parts)}"

    def _plain(self) -> str:
        luck, source = self.luck, self._source()
        shown = [luck.expr(source.all, 2) for _ in range(1 + luck.below(3))]
        return f"SELECT {luck.maybe(15, 'DISTINCT ')}{', '.join(shown)} FROM {source.name}{self._where(source.all)}"

    def _join(self) -> str:
        luck, left, right = self.luck, self._source(), self._source()
        columns = [*(f"p.{column}" for column in left.all), *(f"q.{column}" for column in right.all)]
        how = luck.one(JOINS)
        common = [column for column in left.all if column in right.all]
        if common and luck.chance(15):
            shown, using = f"p.{luck.one(left.all)}, {luck.one(common)}", luck.one(common)
            return f"SELECT {shown} FROM {left.name} p JOIN {right.name} q USING ({using})"
        on = "" if how in (",", "CROSS JOIN") else f" ON p.{luck.one(left.all)} = q.{luck.one(right.all)}"
        on += luck.maybe(25, f" AND {luck.predicate(columns, 1)}") if on else ""
        shown = ", ".join(luck.some(columns, 2, 4))
        return f"SELECT {shown} FROM {left.name} p {how} {right.name} q{on}{self._where(columns)}"

    def _triple(self) -> str:
        luck = self.luck
        p, q, r = self._source(), self._source(), self._source()
        return (
            f"SELECT p.{luck.one(p.all)}, q.{luck.one(q.all)}, r.{luck.one(r.all)} FROM {p.name} p "
            f"{luck.one(('JOIN', 'LEFT JOIN'))} {q.name} q ON p.{luck.one(p.all)} = q.{luck.one(q.all)} "
            f"{luck.one(('JOIN', 'LEFT JOIN'))} {r.name} r ON q.{luck.one(q.all)} = r.{luck.one(r.all)}"
            f"{self._where([f'p.{column}' for column in p.all])}"
        )

    def _grouped(self) -> str:
        luck, source = self.luck, self._source()
        by = luck.some(source.all, 1, 2)
        shown = [
            luck.one(AGGREGATES).format(luck.one(source.all), luck.one(source.all)) for _ in range(1 + luck.below(3))
        ]
        rest = f"FROM {source.name}{self._where(source.all)}"
        having = luck.maybe(30, f" HAVING count(*) {luck.one(('>', '<', '='))} {1 + luck.below(2)}")
        if luck.chance(20):
            return f"SELECT {', '.join(shown)} {rest}"
        return f"SELECT {', '.join([*by, *shown])} {rest} GROUP BY {', '.join(by)}{having}"

    def _compound(self) -> str:
        luck, left, right = self.luck, self._source(), self._source()
        operator = luck.one(("UNION", "UNION ALL", "INTERSECT", "EXCEPT"))
        first = f"SELECT {luck.one(left.all)}, {luck.expr(left.all, 1)} FROM {left.name}{self._where(left.all)}"
        return f"{first} {operator} SELECT {luck.one(right.all)}, {luck.expr(right.all, 1)} FROM {right.name}"

    def _nested(self) -> str:
        luck, outer, inner = self.luck, self._source(), self._source()
        x, y, z = luck.one(outer.all), luck.one(inner.all), luck.one(inner.all)
        tied = f"SELECT {z} FROM {inner.name} i WHERE i.{y} = o.{x}"
        condition = luck.one(
            (
                f"EXISTS ({tied})",
                f"NOT EXISTS ({tied} AND i.{z} > 1)",
                f"o.{x} IN (SELECT {y} FROM {inner.name}{self._where(inner.all)})",
                f"o.{x} NOT IN (SELECT {y} FROM {inner.name} WHERE {y} IS NOT NULL)",
                f"o.{x} > (SELECT min({y}) FROM {inner.name})",
                f"(SELECT count(*) FROM {inner.name} i WHERE i.{y} = o.{x}) = {luck.below(3)}",
            )
        )
        shown = luck.one((f"o.{luck.one(outer.all)}", f"(SELECT max({z}) FROM {inner.name} i WHERE i.{y} = o.{x})"))
        return f"SELECT o.{x}, {shown} FROM {outer.name} o WHERE {condition}"

    def _scalar(self) -> str:
        luck, source = self.luck, self._source()
        inner = f"SELECT {luck.expr(source.all, 1)} AS v, count(*) AS n FROM {source.name} GROUP BY 1"
        return f"SELECT v, n FROM ({inner}) WHERE {luck.predicate(['v', 'n'], 1)}"

    def _with(self) -> str:
        luck, source = self.luck, self._source()
        hint = luck.one(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
        inner = f"SELECT {luck.one(source.all)}, {luck.expr(source.all, 1)} FROM {source.name}{self._where(source.all)}"
        where = self._where(["u.x", "v.y"])
        return f"WITH w(x, y) AS {hint}({inner}) SELECT u.x, v.y FROM w u JOIN w v ON u.x IS v.x{where}"

    def _recursive(self) -> str:
        luck = self.luck
        linked = [table for table in self.tables if table.needs == ["id"]]
        if linked and luck.chance(60):
            table = luck.one(linked)
            return (
                f"WITH RECURSIVE up(id, depth) AS (SELECT id, 0 FROM {table.name} WHERE id = {luck.number()} UNION "
                f"SELECT t.id, depth + 1 FROM {table.name} t JOIN up ON t.{luck.one(table.columns)} = up.id "
                "WHERE depth < 5) SELECT id, depth FROM up"
            )
        return (
            "WITH RECURSIVE n(i, f) AS (SELECT 1, 1 UNION ALL "
            f"SELECT i + 1, f * (i + 1) FROM n WHERE i < {3 + luck.below(20)}) "
            f"SELECT i, f, i % 3 FROM n{self._where(['i', 'f'])}"
        )

    def _window(self) -> str:
        luck, source = self.luck, self._source()
        order = ", ".join(f"{column}{luck.maybe(30, ' DESC')}{luck.maybe(20, ' NULLS LAST')}" for column in source.all)
        part = luck.maybe(60, f"PARTITION BY {luck.one(source.all)} ")
        column = luck.one(source.all)
        function = luck.one(
            (
                *("row_number()", "rank()", "dense_rank()", "percent_rank()", "ntile(3)", "count(*)"),
                *(f"sum(length({column}))", f"max({column})", f"lag({column}, 1, 'none')", f"first_value({column})"),
                *(f"lead({column})", f"nth_value({column}, 2)", f"group_concat(quote({column}))"),
            )
        )
        frame = luck.maybe(50, f" {luck.one(FRAMES)}")
        return f"SELECT {column}, {function} OVER ({part}ORDER BY {order}{frame}) FROM {source.name}"

    def _json(self) -> str:
        luck, source = self.luck, self._source()
        column, other = luck.one(source.all), luck.one(source.all)
        return luck.one(
            (
                f"SELECT s.{column}, j.key, j.type FROM {source.name} s, json_each(json_array(s.{other}, 2)) j "
                f"WHERE typeof(s.{column}) <> 'blob'",
                f"SELECT quote(json_extract(json_object('a', quote({column})), '$.a')) FROM {source.name}",
                'SELECT fullkey, atom FROM json_tree(\'{"a":[1,2,{"b":null}],"c":"x"}\')',
                f"SELECT json_set('[1,2]', '$[#]', quote({column})), json_type('[{luck.below(9)}]') FROM {source.name}",
            )
        )

    def _values(self) -> str:
        luck = self.luck
        rows = ", ".join(f"({luck.value()}, {luck.expr([], 2)})" for _ in range(1 + luck.below(4)))
        return f"SELECT column1, column2, typeof(column2) FROM (VALUES {rows})"

    # --- what writes ---

    def write(self, *, inside: bool) -> tuple[str, bool]:
        """Return a statement that writes, ``inside`` a transaction or not, and whether it gives rows."""
        forms: list[Callable[[str], tuple[str, bool]]] = [
            *(self._insert, self._insert, self._insert, self._insert_select, self._upsert, self._upsert, self._update),
            *(self._update, self._update_from, self._delete, self._replace, self._insert_view),
        ]
        # Of a row that fails under OR FAIL, SQLite counts a deferred key as broken though the row is not there.
        fail = inside and not any(table.deferred for table in self.tables)
        return self.luck.one(forms)(self.luck.one(OR_IN_TRANSACTION if fail else OR))

    def _returning(self, table: Table) -> tuple[str, bool]:
        luck = self.luck
        if luck.chance(75):
            return "", False
        return f" RETURNING {', '.join([*luck.some(table.all, 1, 2), luck.expr(table.columns, 1)])}", True

    def _columns(self, table: Table) -> list[str]:
        rest = [column for column in table.columns if column not in table.needs]
        return [*table.needs, *self.luck.some(rest, max(0, len(rest) - 2), len(rest))]

    def _row(self, table: Table, columns: list[str]) -> str:
        luck = self.luck
        values = [
            luck.number()
            if column in (*table.key, *table.needs) and (column in table.needs or luck.chance(80))
            else luck.value()
            for column in columns
        ]
        return f"({', '.join(values)})"

    def _insert(self, how: str) -> tuple[str, bool]:
        luck, table = self.luck, self.luck.one(self.tables)
        columns = self._columns(table)
        rows = ", ".join(self._row(table, columns) for _ in range(luck.one((1, 1, 1, 2, 3, 5))))
        text, gives = self._returning(table)
        return f"INSERT{how} INTO {table.name}({', '.join(columns)}) VALUES {rows}{text}", gives

    def _replace(self, _how: str) -> tuple[str, bool]:
        table = self.luck.one(self.tables)
        columns = self._columns(table)
        text, gives = self._returning(table)
        return f"REPLACE INTO {table.name}({', '.join(columns)}) VALUES {self._row(table, columns)}{text}", gives

    def _insert_select(self, how: str) -> tuple[str, bool]:
        luck, table, source = self.luck, self.luck.one(self.tables), self._source()
        columns = self._columns(table)
        given = []
        for column in columns:
            number = f"{luck.one(('length', 'unicode'))}(quote({luck.one(source.all)})) % 20"
            given.append(number if column in table.needs else luck.expr(source.all, 1))
        with_ = luck.maybe(20, f"WITH w AS (SELECT * FROM {source.name}) ") if not source.is_view else ""
        name = "w" if with_ else source.name
        text, gives = self._returning(table)
        into, rest = f"{table.name}({', '.join(columns)})", f"FROM {name}{self._where(source.all)}{text}"
        return f"{with_}INSERT{how} INTO {into} SELECT {', '.join(given)} {rest}", gives

    def _upsert(self, _how: str) -> tuple[str, bool]:
        luck, table = self.luck, self.luck.one(self.tables)
        columns = self._columns(table)
        target = f"({', '.join(table.key)})" if table.key and luck.chance(85) else ""
        row = [f"excluded.{column}" for column in columns]
        sets = f"{luck.one(table.columns)} = {luck.expr([*table.columns, *row], 1)}"
        action = luck.one(
            ("NOTHING", f"UPDATE SET {sets}", f"UPDATE SET {sets} WHERE {luck.predicate(table.columns, 1)}")
        )
        rows = ", ".join(self._row(table, columns) for _ in range(luck.one((1, 1, 2))))
        text, gives = self._returning(table)
        return (
            f"INSERT INTO {table.name}({', '.join(columns)}) VALUES {rows} ON CONFLICT{target} DO {action}{text}",
            gives,
        )

    def _update(self, how: str) -> tuple[str, bool]:
        luck, table = self.luck, self.luck.one(self.tables)
        sets = []
        for column in luck.some(table.columns, 1, 2):
            moved = f"{column} + {luck.one(('1', '10', '-1'))}" if column in table.needs else luck.expr(table.all, 1)
            sets.append(f"{column} = {moved}")
        text, gives = self._returning(table)
        return f"UPDATE{how} {table.name} SET {', '.join(sets)}{self._where(table.all)}{text}", gives

    def _update_from(self, how: str) -> tuple[str, bool]:
        luck, table, source = self.luck, self.luck.one(self.tables), self._source()
        column = luck.one([column for column in table.columns if column not in table.needs])
        theirs = [f"s.{one}" for one in source.all]
        where = f"u.{luck.one(table.all)} = {luck.one(theirs)} AND {luck.predicate(theirs, 1)}"
        given = luck.expr(theirs, 1)
        return f"UPDATE{how} {table.name} AS u SET {column} = {given} FROM {source.name} s WHERE {where}", False

    def _delete(self, _how: str) -> tuple[str, bool]:
        luck, table, source = self.luck, self.luck.one(self.tables), self._source()
        where = f" WHERE {luck.predicate(table.all, 1)} AND {luck.predicate(table.all, 1)}"
        if luck.chance(30):
            inner = f"SELECT {luck.one(source.all)} FROM {source.name}{self._where(source.all)}"
            where = f" WHERE {luck.one(table.all)} IN ({inner})"
        text, gives = self._returning(table)
        return f"DELETE FROM {table.name}{where}{text}", gives

    def _insert_view(self, _how: str) -> tuple[str, bool]:
        luck = self.luck
        if not self.views:
            return self._delete("")
        return f"INSERT INTO {luck.one(self.views).name}(x, y) VALUES ({luck.value()}, {luck.value()})", False
