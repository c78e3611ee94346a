"""Rows as tables of characters, laid out as sqlite3's shell does: box, table, column and markdown. Pure.

A text of several lines makes a row of several lines. Where a width is given, the widest columns are folded into it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

LEAST = 4  # no column is folded to fewer characters
TAB = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """The characters that draw one kind of table."""

    # ``top``, ``under``, ``between`` and ``bottom``: the horizontal lines, each as its left end, filling, crossing and
    # right end; empty: no such line.
    top: str
    under: str
    between: str
    bottom: str
    # ``left``, ``bar`` and ``right``: the texts before, between and after the cells of a row.
    left: str
    bar: str
    right: str
    centred: bool = True  # whether the names of columns are centred


BOX = Frame("┌─┬┐", "├─┼┤", "├─┼┤", "└─┴┘", "│ ", " │ ", " │")
ASCII = Frame("+-++", "+-++", "+-++", "+-++", "| ", " | ", " |")
MARKDOWN = Frame("", "|-||", "", "", "| ", " | ", " |")
COLUMN = Frame("", " - ", "", "", "", "  ", "", centred=False)


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], frame: Frame, *, headers: bool = True, width: int = 0
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        rows: the cells; the only control character in them is the line feed.
        width: the characters of a line, to which columns are folded if possible; 0: no bound.
    """
    cells = [[_lines(cell) for cell in row] for row in ([columns] if headers else []) + list(rows)]
    widths = [max(1, *(cell_len(line) for line in column)) for column in _by_column(cells, len(columns))]
    if width:
        room = width - len(frame.left) - len(frame.right) - len(frame.bar) * (len(columns) - 1)
        widths = _fit(widths, room)
        cells = [[_fold(cell, wide) for cell, wide in zip(row, widths, strict=True)] for row in cells]
    is_tall = any(len(cell) > 1 for row in cells[headers:] for cell in row)
    if frame.top:
        yield _rule(frame.top, frame, widths)
    if headers:
        yield from _row(cells[0], widths, frame, centred=frame.centred)
        yield _rule(frame.under, frame, widths)
    for number, row in enumerate(cells[headers:]):
        if number and is_tall:  # else the end of a row could not be seen
            yield _rule(frame.between, frame, widths) if frame.between else ""
        yield from _row(row, widths, frame)
    if frame.bottom:
        yield _rule(frame.bottom, frame, widths)


def _lines(cell: str) -> list[str]:
    return [line.expandtabs(TAB) for line in cell.split("\n")]


def _by_column(cells: list[list[list[str]]], count: int) -> Iterator[list[str]]:
    for place in range(count):
        yield [line for row in cells for line in row[place]]


def _fit(widths: list[int], room: int) -> list[int]:
    """Return narrower widths: the widest columns shrink until all fit, or until they have ``LEAST`` characters."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > LEAST:
        widest = max(widths)
        wide = [place for place, width in enumerate(widths) if width == widest]
        below = max([LEAST, *(width for width in widths if width < widest)])
        step = max(1, min(widest - below, (sum(widths) - room) // len(wide)))
        for place in wide:
            if sum(widths) > room:
                widths[place] -= step
    return widths


def _fold(cell: list[str], width: int) -> list[str]:
    return [part for line in cell for part in (chop_cells(line, width) if cell_len(line) > width else [line])]


def _rule(signs: str, frame: Frame, widths: list[int]) -> str:
    if frame is COLUMN:
        return "  ".join("-" * width for width in widths)
    return signs[0] + signs[2].join(signs[1] * (width + 2) for width in widths) + signs[3]


def _row(cells: list[list[str]], widths: list[int], frame: Frame, *, centred: bool = False) -> Iterator[str]:
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (_pad(part, width, centred=centred) for part, width in zip(parts, widths, strict=True))
        yield frame.left + frame.bar.join(padded) + frame.right


def _pad(text: str, width: int, *, centred: bool) -> str:
    room = max(0, width - cell_len(text))
    before = room // 2 if centred else 0
    return " " * before + text + " " * (room - before)
