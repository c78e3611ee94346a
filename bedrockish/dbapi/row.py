"""A row with access to its values by name and by position, like ``sqlite3.Row``."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bedrockish.dbapi.cursor import Cursor


def _folded(name: str) -> bytes:
    """Return a name folded for comparison: as in SQLite, only ASCII letters are folded."""
    return name.encode(errors="surrogatepass").lower()


class Row:
    """One row of a result; set the class as a connection's ``row_factory``. Names are not case-sensitive."""

    __slots__ = ("_names", "_values")

    def __init__(self, cursor: "Cursor", values: tuple[Any, ...], /) -> None:
        if not hasattr(cursor, "description"):
            raise TypeError(f"a row belongs to a Cursor, not to {type(cursor).__name__}")
        self._names = tuple(column[0] for column in cursor.description or ())
        self._values = values

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._names)

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, slice) or hasattr(key, "__index__"):
            return self._values[key]
        if not isinstance(key, str):
            raise IndexError(f"Index must be int or string, not {type(key).__name__}")
        wanted = _folded(key)
        for place, name in enumerate(self._names):
            if name == key or _folded(name) == wanted:
                return self._values[place]
        raise IndexError(f"no column is named {key!r}; there are {', '.join(self._names)}")

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        return (self._names, self._values) == (other._names, other._values)

    def __hash__(self) -> int:
        return hash((self._names, self._values))

    def __repr__(self) -> str:
        return f"<Row {dict(zip(self._names, self._values, strict=True))}>"


Sequence.register(Row)
