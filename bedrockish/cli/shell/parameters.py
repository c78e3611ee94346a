"""``.parameter``: values for the parameters of statements, by the parameters' names, as in sqlite3's shell."""

import sqlite3
from contextlib import closing

from bedrockish.api.requests import Params, check_params
from bedrockish.cli.output import literal
from bedrockish.errors import UsageError
from bedrockish.sqltext.tokenizer import NotTokensError, tokens

MARKS = ":@$?"
STEPS = 1_000_000  # the most steps of SQLite's virtual machine for the expression of a value


class Parameters:
    """The values that were set in one session."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def set(self, name: str, text: str) -> None:
        """Set a value; a text that is not an expression of SQL is the value itself.

        Raises:
            UsageError: the name is not the name of a parameter.
        """
        self._values[_checked(name)] = _evaluate(text)

    def unset(self, name: str) -> None:
        """Forget a value."""
        self._values.pop(_checked(name), None)

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def lines(self) -> list[str]:
        """Return each name and its value as SQL."""
        width = max(map(len, self._values), default=0)
        return [f"{name:<{width}} {literal(value)}" for name, value in sorted(self._values.items())]

    def bind(self, sql: str) -> Params:
        """Return the parameters of a statement; NULL for a name that was not set, as in sqlite3.

        Raises:
            UsageError: the statement's parameters cannot be distinguished.
        """
        try:
            names = list(dict.fromkeys(token.text for token in tokens(sql) if token.kind == "param"))
        except NotTokensError:  # the node answers with the error
            return None
        if not names:
            return None
        numbered = [name for name in names if name.startswith("?")]
        if numbered and len(numbered) < len(names):
            raise UsageError("parameters are by number or by name; one statement cannot have both here")
        if numbered:
            return self._by_number(numbered)
        found = {name[1:]: self._values.get(name) for name in names}
        if len(found) < len(names):
            raise UsageError(f"two parameters differ only in how they begin ({', '.join(names)}); rename one")
        return check_params(found)

    def _by_number(self, names: list[str]) -> Params:
        if "?" in names:
            raise UsageError("a parameter ? has no name to be set by; write ?1 or :name")
        last = max(int(name[1:]) for name in names)
        if last > len(self._values) and f"?{last}" not in self._values and last > 32_766:
            raise UsageError(f"there is no parameter ?{last}; SQLite counts to 32766")
        return check_params([self._values.get(f"?{number}") for number in range(1, last + 1)])


def _checked(name: str) -> str:
    try:
        found = tokens(name)
    except NotTokensError:
        found = []
    if len(found) != 1 or found[0].kind != "param" or name == "?" or name[0] not in MARKS:
        raise UsageError(f"a parameter's name begins with one of : @ $ ?, such as :id or ?1, not {name!r}")
    return name


def _evaluate(text: str) -> object:
    with closing(sqlite3.connect(":memory:")) as db:
        steps = 0

        def count() -> bool:
            nonlocal steps
            steps += 1
            return steps > STEPS // 1000

        db.set_progress_handler(count, 1000)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 24)
        try:
            (value,) = db.execute(f"SELECT {text}\n").fetchone()
        except (sqlite3.Error, sqlite3.Warning, ValueError, TypeError):
            return text
    return value
