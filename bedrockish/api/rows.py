"""What a caller gets for a statement."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bedrockish.api.requests import Answer, decode_results
from bedrockish.errors import ProtocolMismatchError, UsageError


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of one statement; iterate over it for its rows, which are tuples.

    Attributes:
        columns: names of the columns; empty for a statement that gives no rows.
        rows: all rows.
        rowcount: rows that the statement changed; -1 for one that changes none by nature.
        lastrowid: rowid of the row inserted last, or None.
        place: where in the journal the transaction stands, as leader and tick; None if it only read.
        attempts: how often the node ran the transaction; above 1, it met conflicts.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    rowcount: int = -1
    lastrowid: int | None = None
    place: tuple[str, int] | None = None
    attempts: int = 1

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return True  # a result without rows is a result

    def one(self) -> tuple[Any, ...]:
        """Return the only row.

        Raises:
            UsageError: there is none, or there are several.
        """
        if len(self.rows) != 1:
            raise UsageError(f"one row was expected, but there are {len(self.rows)}")
        return self.rows[0]

    def value(self) -> Any:
        """Return the only value of the only row.

        Raises:
            UsageError: there are more or fewer rows or columns than one.
        """
        row = self.one()
        if len(row) != 1:
            raise UsageError(f"one column was expected, but there are {len(row)}")
        return row[0]


def rows_of(answer: Answer, statements: int | None = None) -> list[Rows]:
    """Return an answer's results, one for each statement.

    Raises:
        ProtocolMismatchError: the node sent something else than that.
    """
    try:
        results = decode_results(answer.results)
    except UsageError as error:
        raise ProtocolMismatchError(f"the node sent results that cannot be read: {error.message}") from error
    if statements is not None and len(results) != statements:
        raise ProtocolMismatchError(f"the node sent {len(results)} results for {statements} statements")
    return [
        Rows(result.columns, result.rows, result.rowcount, result.lastrowid, answer.place, answer.attempts)
        for result in results
    ]
