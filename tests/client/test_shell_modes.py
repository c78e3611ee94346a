"""Output modes of the shell: equal to those of sqlite3's shell, and without raw control characters."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
from contextlib import closing
from typing import Any

import pytest

from bedrockish.api.requests import Rows
from bedrockish.cli.output import ALL_MODES, Style, print_rows
from bedrockish.cli.safe_text import UNSAFE, harmless
from bedrockish.cli.shell.parameters import Parameters
from bedrockish.errors import UsageError

SQLITE = shutil.which("sqlite3")
TABLES: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {
    "plain": (("id", "name"), [(1, "one"), (-22, "two words"), (333333, "")]),
    "null": (("a", "b", "a long name"), [(None, 1.5, "x"), ("é", None, None)]),
    "quotes": (("q",), [("it's",), ('say "so"',), ("a,b",), ("a|b",), ("semi;colon",), ("\\",)]),
    "names": (("order", "two words", 'q"n', "Ok_1"), [(1, 2, 3, 4)]),
    "lines": (("id", "text"), [(1, "one\ntwo"), (2, "three"), (3, "a\tb")]),
    "one": (("x",), [(7,)]),
    "none": (("x", "y"), []),
}
# In these forms this shell differs: it keeps a row on one line, keeps a bar inside its cell, or names the columns of an
# empty result.
APART = {
    *(("line", "lines"), ("list", "lines"), ("insert", "lines"), ("markdown", "lines"), ("markdown", "quotes")),
    *(("csv", "none"), ("list", "none")),
}
SAME = ("box", "table", "column", "markdown", "csv", "json", "line", "list", "insert")


def printed(mode: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], **style: Any) -> str:
    out = io.StringIO()
    print_rows(Rows(columns, rows, -1, None, None, 1), Style(mode, **style), out)
    return out.getvalue()


@pytest.mark.skipif(SQLITE is None, reason="no sqlite3 program here; apt-get install sqlite3")
@pytest.mark.parametrize("mode", SAME)
@pytest.mark.parametrize("name", sorted(TABLES))
def test_shell_modes_print_the_same_as_sqlite3(mode: str, name: str) -> None:
    if (mode, name) in APART:
        pytest.skip("here it is another on purpose; see the page")
    columns, rows = TABLES[name]
    values = (
        " UNION ALL ".join(
            "SELECT "
            + ", ".join(f"{sql(value)} AS {quoted(column)}" for value, column in zip(row, columns, strict=True))
            for row in rows
        )
        or "SELECT " + ", ".join(f"1 AS {quoted(column)}" for column in columns) + " WHERE 0"
    )
    target = " t" if mode == "insert" else ""
    assert SQLITE is not None
    script = f".headers on\n.mode {mode}{target}\n{values};\n"
    done = subprocess.run([SQLITE, "-batch"], input=script.encode(), capture_output=True, timeout=20, check=True)
    expected = done.stdout.decode()
    if mode == "json" and not rows:
        expected = "[]\n"  # this shell prints valid JSON for no rows, too
    found = printed(mode, columns, rows, target="t", headers=True)
    assert found.replace("\r\n", "\n") == expected.replace("\r\n", "\n")


def sql(value: Any) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


EVIL = "\x1b[2J\x1b]0;title\x07 \x9b31m \x00 \x08\x08 \r over \u202e txt \ufeff \x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("mode", ALL_MODES)
def test_control_characters_do_not_reach_the_terminal(mode: str) -> None:
    """Neither values nor names are printed with control characters, in any mode."""
    out = Terminal()
    print_rows(Rows((EVIL, "b"), [(EVIL, 1), (EVIL.encode(), 2)], -1, None, None, 1), Style(mode, headers=True), out)
    assert out.getvalue()
    assert not UNSAFE.search(out.getvalue().replace("\r\n", "\n"))


@pytest.mark.parametrize("text", [EVIL, "", "it's", "né\n\t;", "\\x1b", "\x1b[31m", "x" * 3000])
def test_output_files_read_back_as_the_same_text(text: str) -> None:
    """CSV, JSON and INSERT are read back as the same text, control characters and all."""
    (row,) = csv.reader(io.StringIO(printed("csv", ("a", "b"), [(text, 1)], headers=False), newline=""))
    assert row == [text, "1"]
    assert json.loads(printed("json", ("a", "a"), [(text, 1)])) == [{"a": text, "a:2": 1}]
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t(a, b)")
        db.executescript(printed("insert", ("a", "b"), [(text, 1)], target="t"))
        assert db.execute("SELECT * FROM t").fetchall() == [(text, 1)]


def test_csv_distinguishes_null_from_empty_text() -> None:
    assert printed("csv", ("a", "b"), [(None, "")], headers=False) == ',""\r\n'
    assert printed("box", ("a",), [(None,)], null="NULL").splitlines()[3] == "│ NULL │"


@pytest.mark.parametrize("mode", ["box", "table", "column", "markdown"])
def test_tables_fit_the_requested_width(mode: str) -> None:
    """The widest columns are folded; a wide letter counts twice."""
    rows = [(1, "word " * 30, "漢字" * 20), (2, "short", "x")]
    lines = printed(mode, ("id", "text", "wide"), rows, wrap=60).splitlines()
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= 60
    whole = "".join(lines).replace(" ", "")
    assert whole.count("word") >= 20
    assert "漢" in whole


def test_escaping_of_control_characters_keeps_line_feeds_and_tabs() -> None:
    assert harmless("a\n\tb\x1b[0m") == "a\n\tb\\x1b[0m"


def test_shell_parameter_is_an_expression_or_a_text() -> None:
    values = Parameters()
    assert values.bind("SELECT 1") is None
    values.set(":x", "5")
    values.set("@when", "date('2026-01-02')")
    values.set("$t", "just words")
    values.set("?2", "'it''s'")
    assert values.bind("SELECT :x, @when, $t, :missing") == {
        "x": 5,
        "when": "2026-01-02",
        "t": "just words",
        "missing": None,
    }
    assert values.bind("SELECT ?2") == [None, "it's"]
    assert values.lines() == ["$t    'just words'", ":x    5", "?2    'it''s'", "@when '2026-01-02'"]
    assert values.bind("SELECT ':x' -- @y") is None
    for wrong in ("SELECT :x, ?2", "SELECT ?", "SELECT :x, @x", "SELECT ?99999999"):
        with pytest.raises(UsageError):
            values.bind(wrong)
    for wrong in ("x", "", ":", ":a b", "?", "1"):
        with pytest.raises(UsageError):
            values.set(wrong, "1")
    endless = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n)"
    values.set(":x", endless)
    assert values.bind("SELECT :x") == {"x": endless}, "what runs too long is taken as a text"
    values.unset(":x")
    assert values.bind("SELECT :x") == {"x": None}
    values.clear()
    assert values.lines() == []
