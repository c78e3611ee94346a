"""The printing of results, in the forms of sqlite3's shell and one more. Data never controls the terminal."""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import apsw

from bedrockish.api.json_forms import unique_names
from bedrockish.api.requests import Rows
from bedrockish.cli.layout import ASCII, COLUMN, MARKDOWN, Frame, lay_out
from bedrockish.cli.layout import BOX as BOX_FRAME
from bedrockish.cli.safe_text import UNSAFE, harmless, is_terminal, visible, write
from bedrockish.sqltext import literals
from bedrockish.sqltext.literals import literal_in_hex
from bedrockish_journal.model.plain_names import quote

BOX, TABLE, COLUMNS, MARKS = "box", "table", "column", "markdown"
PLAIN, CSV, JSON, LINE, LIST, INSERT = "plain", "csv", "json", "line", "list", "insert"
ALL_MODES = (BOX, COLUMNS, TABLE, JSON, CSV, LINE, INSERT, MARKS, LIST, PLAIN)
FRAMES: dict[str, Frame] = {BOX: BOX_FRAME, TABLE: ASCII, COLUMNS: COLUMN, MARKS: MARKDOWN}
LINE_NAME = 5  # the least width of a name in the mode ``line``
SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CSV_QUOTED = re.compile(r"[^!#-&(-~]|,")  # sqlite3 puts quotes around values with any of these


@dataclass(frozen=True, slots=True)
class Style:
    """The style in which rows are printed."""

    mode: str  # one of ``ALL_MODES``
    headers: bool | None = None  # whether column names come before rows; by default in tables, columns and CSV only
    null: str | None = None  # the text for NULL; by default empty, and NULL in the mode ``plain``
    target: str = "table"  # the table that ``insert`` names
    wrap: int = 0  # the most characters of a line in tables and columns; 0: the terminal's width, or no bound in a pipe

    def show(self, value: Any, *, lines: bool = False) -> str:
        """Return a value as text; with ``lines``, its line feeds and tabs are not escaped."""
        if value is None:
            return self.null if self.null is not None else "NULL" if self.mode == PLAIN else ""
        return harmless(show_exactly(value)) if lines else show(value)


def show_exactly(value: Any) -> str:
    """Return a value as text without any escaping; blobs as SQL writes them."""
    return f"x'{value.hex()}'" if isinstance(value, bytes) else str(value)


def show(value: Any) -> str:
    """Return a value as SQL would write it, but texts without their quotes."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return visible(str(value))


def literal(value: Any) -> str:
    """Return a value as a literal of SQL that SQLite reads as the same value, without characters for terminals."""
    return literal_in_hex(value) if isinstance(value, str) and UNSAFE.search(value) else literals.literal(value)


def name(text: str) -> str:
    """Return a name as an SQL identifier, in quotes if it needs them."""
    return text if SIMPLE.fullmatch(text) and text.upper() not in apsw.keywords else quote(text)


def print_rows(rows: Rows, style: Style | str, out: TextIO | None = None) -> None:
    """Print the result of one statement; without columns, only the mode ``box`` prints how many rows it changed."""
    style = Style(style) if isinstance(style, str) else style
    if not rows.columns:
        if style.mode == BOX:
            write(_done(rows) + "\n", out)
        return
    for text in _texts(rows, style, shown=is_terminal(out)):
        write(text, out)
    (out or sys.stdout).flush()


def _texts(rows: Rows, style: Style, *, shown: bool) -> Iterator[str]:
    match style.mode:
        case mode if mode in FRAMES:
            yield from _table(rows, style, FRAMES[mode], shown=shown)
        case "csv":
            yield from _csv(rows, style, shown=shown)
        case "json":
            yield from _json(rows)
        case "line":
            width = max(LINE_NAME, *(len(visible(column)) for column in rows.columns))
            for number, row in enumerate(rows):
                cells = zip(rows.columns, row, strict=True)
                block = "".join(f"{visible(column):>{width}} = {style.show(value)}\n" for column, value in cells)
                yield "\n" * (number > 0) + block
        case "insert":
            names = f"({','.join(map(name, rows.columns))})" if style.headers else ""
            head = f"INSERT INTO {name(style.target)}{names}"
            head = harmless(head) if shown else head
            for row in rows:
                yield f"{head} VALUES({','.join(map(literal, row))});\n"
        case mode:
            between = "|" if mode == LIST else "\t"
            if style.headers:
                yield between.join(map(visible, rows.columns)) + "\n"
            for row in rows:
                yield between.join(style.show(value) for value in row) + "\n"


def _done(rows: Rows) -> str:
    where = f" ({rows.place[0]}{rows.place[1]})" if rows.place is not None else ""
    if rows.rowcount < 0:
        return f"done{where}"
    return f"{rows.rowcount} row{'' if rows.rowcount == 1 else 's'} changed{where}"


def _table(rows: Rows, style: Style, frame: Frame, *, shown: bool) -> Iterator[str]:
    if not len(rows):
        return
    names = [harmless(column) for column in rows.columns]
    cells = [[style.show(value, lines=True) for value in row] for row in rows]
    if frame is MARKDOWN:  # a bar or a line feed would begin another cell or row
        names, *cells = [[_in_markdown(cell) for cell in row] for row in (names, *cells)]
    headers = style.headers is not False or frame is not COLUMN  # framed tables always have headers, as in sqlite3
    width = style.wrap or (shutil.get_terminal_size().columns if shown else 0)
    for line in lay_out(names, cells, frame, headers=headers, width=width):
        yield line + "\n"


def _in_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>") if re.search(r"[|\n]", cell) else cell


def _csv(rows: Rows, style: Style, *, shown: bool) -> Iterator[str]:
    """Yield CSV as sqlite3 writes it: an empty text has quotes, and NULL has none."""

    def cell(value: Any) -> str:
        if value is None:
            return style.null or ""
        text = show_exactly(value)
        text = harmless(text) if shown else text
        if isinstance(value, str) and (not text or CSV_QUOTED.search(text)):
            return '"' + text.replace('"', '""') + '"'
        return text

    if style.headers is not False:
        yield ",".join(map(cell, rows.columns)) + "\r\n"
    for row in rows:
        yield ",".join(map(cell, row)) + "\r\n"


def _json(rows: Rows) -> Iterator[str]:
    """Yield a JSON array, with a line for each row."""
    names = unique_names(rows.columns)
    for number, row in enumerate(rows):
        packed = json.dumps(
            dict(zip(names, map(_json_value, row), strict=True)), ensure_ascii=False, separators=(",", ":")
        )
        yield (",\n" if number else "[") + UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", packed)
    yield "]\n" if len(rows) else "[]\n"


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return show(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value
