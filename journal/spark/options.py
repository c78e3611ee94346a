"""The options of the data source, checked where a query is made and not where it runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from journal.spark.tables import TABLES, Table

PARTITION_ROWS = 50_000
BEGINNING, OLDEST, NOW = "beginning", "oldest", "now"
STARTS = (BEGINNING, OLDEST, NOW)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read, checked.

    Attributes:
        path: the node files: comma separated paths, globs and directories.
        table: which table.
        leader: only this timeline.
        clock_from: leave out commits with a lower clock.
        clock_to: leave out commits with a higher clock.
        columns: the columns wanted, in this order; empty for all.
        partition_rows: commits read by one task.
        skip_malformed: leave out entries that cannot be decoded, instead of failing.
        starting: where a new stream begins.
        max_commits: commits of each file in one batch of a stream at most; None for all that there are.
    """

    path: str
    table: str = "commits"
    leader: str | None = None
    clock_from: int | None = None
    clock_to: int | None = None
    columns: tuple[str, ...] = ()
    partition_rows: int = PARTITION_ROWS
    skip_malformed: bool = False
    starting: str = BEGINNING
    max_commits: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Check the options of ``spark.read`` or ``spark.readStream``.

        Raises:
            ValueError: an option is missing, unknown, or has a value that it cannot have.
        """
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - _KNOWN)
        if unknown:
            raise ValueError(f"bedrockish has no option {unknown[0]!r}; it has {', '.join(sorted(_KNOWN))}")
        if not options.get("path", "").strip():
            raise ValueError("give the node files: .load('a.db,b.db') or .option('path', …)")
        table = options.get("table", "commits")
        if table not in TABLES:
            raise ValueError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
        columns = tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip())
        check_columns(TABLES[table], table, columns)
        malformed = options.get("malformed", "fail")
        if malformed not in ("fail", "skip"):
            raise ValueError(f"malformed cannot be {malformed!r}; it is 'fail' or 'skip'")
        starting = options.get("starting", BEGINNING)
        if starting not in STARTS:
            raise ValueError(f"starting cannot be {starting!r}; it is {', '.join(STARTS)}")
        rows = _number(options, "partition_rows", 1)
        return cls(
            options["path"],
            table,
            options.get("leader"),
            _number(options, "clock_from", 0),
            _number(options, "clock_to", 0),
            columns,
            PARTITION_ROWS if rows is None else rows,
            malformed == "skip",
            starting,
            _number(options, "max_commits", 1),
        )


_KNOWN = {
    *("path", "table", "leader", "clock_from", "clock_to", "columns", "partition_rows", "malformed"),
    *("starting", "max_commits"),
}


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not least <= int(text) < 1 << 63:
        raise ValueError(f"{name} cannot be {text!r}; it is a whole number from {least} to 2^63 - 1")
    return int(text)


def check_columns(table: Table, name: str, columns: tuple[str, ...]) -> None:
    """Check that a table has the columns that are asked for.

    Raises:
        ValueError: it lacks one, or one is asked for twice.
    """
    for column in columns:
        if column not in table.columns:
            raise ValueError(f"the table {name} has no column {column!r}; it has {', '.join(table.columns)}")
        if columns.count(column) > 1:
            raise ValueError(f"the column {column!r} is asked for twice")
