"""How results are printed: tables for people, and six forms for programs. Data never controls the terminal."""

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bedrockish.client.load import quote
from bedrockish.client.rows import Rows

TABLE, PLAIN, CSV, JSON, LINE, LIST, INSERT = "table", "plain", "csv", "json", "line", "list", "insert"
MODES = (TABLE, PLAIN, CSV, JSON, LINE)
ALL_MODES = (*MODES, LIST, INSERT)


@dataclass(frozen=True, slots=True)
class Style:
    """How to print rows.

    Attributes:
        mode: one of ``ALL_MODES``.
        headers: whether names come before rows; by default in tables and CSV only.
        null: what NULL is printed as; by default NULL, and nothing in CSV and lists.
        target: the table that ``insert`` names.
    """

    mode: str
    headers: bool | None = None
    null: str | None = None
    target: str = "table"

    def show(self, value: Any) -> str:
        """Return a value as text."""
        if value is not None:
            return show(value)
        if self.null is not None:
            return self.null
        return "" if self.mode in (CSV, LIST) else "NULL"


def visible(text: str) -> str:
    """Return a text with its control characters spelt out."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def show(value: Any) -> str:
    """Return a value as SQL would write it, but texts without their quotes."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return visible(str(value))


def literal(value: Any) -> str:
    """Return a value as SQL that SQLite reads as the same value."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "9e999" if value > 0 else "-9e999"
    if isinstance(value, str):
        if "\0" in value:  # a text of SQL ends there
            return f"CAST(X'{value.encode().hex()}' AS TEXT)"
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def print_rows(rows: Rows, style: Style | str, out: TextIO | None = None) -> None:
    """Print the result of one statement; for one without columns, the table says what it did and the others nothing."""
    style = Style(style) if isinstance(style, str) else style
    if not rows.columns:
        if style.mode == TABLE:
            click.echo(_done(rows), out)
        return
    match style.mode:
        case "table":
            _print_table(rows, style, out)
        case "csv":
            _print_csv(rows, style, out)
        case "json":
            _print_json(rows, out)
        case "line":
            width = max(len(visible(column)) for column in rows.columns)
            blocks = (
                "\n".join(f"{visible(c):>{width}} = {style.show(v)}" for c, v in zip(rows.columns, row, strict=True))
                for row in rows
            )
            if len(rows):
                click.echo("\n\n".join(blocks), out)
        case "insert":
            names = f"({', '.join(map(quote, rows.columns))})" if style.headers else ""
            for row in rows:
                click.echo(f"INSERT INTO {quote(style.target)}{names} VALUES({','.join(map(literal, row))});", out)
        case mode:
            between = "|" if mode == LIST else "\t"
            if style.headers:
                click.echo(between.join(map(visible, rows.columns)), out)
            for row in rows:
                click.echo(between.join(style.show(value) for value in row), out)


def _done(rows: Rows) -> str:
    where = f" ({rows.place[0]}{rows.place[1]})" if rows.place is not None else ""
    if rows.rowcount < 0:
        return f"done{where}"
    return f"{rows.rowcount} row{'' if rows.rowcount == 1 else 's'} changed{where}"


def _print_table(rows: Rows, style: Style, out: TextIO | None) -> None:
    table = Table(header_style="bold", show_header=style.headers is not False)
    for place, column in enumerate(rows.columns):
        numbers = len(rows) > 0 and all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(Text(visible(column)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(style.show(value), style="dim" if value is None else "") for value in row))
    Console(file=out).print(table)


def _print_csv(rows: Rows, style: Style, out: TextIO | None) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if style.headers is not False:
        writer.writerow(rows.columns)
    writer.writerows([style.show(value) if isinstance(value, bytes | None) else value for value in row] for row in rows)
    click.echo(text.getvalue(), out, nl=False)


def _print_json(rows: Rows, out: TextIO | None) -> None:
    names: list[str] = []
    for column in rows.columns:  # an object cannot have a name twice
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}:{number}"
        names.append(name)
    packed = [dict(zip(names, map(_json_value, row), strict=True)) for row in rows]
    click.echo(json.dumps(packed, ensure_ascii=False), out)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return show(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value
