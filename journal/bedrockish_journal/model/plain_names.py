"""Names of tables and columns: as SQLite compares and quotes them, and in the characters that Parquet allows."""

import re
from string import ascii_lowercase, ascii_uppercase

_PLAIN = re.compile(r"(?!x_)[A-Za-z0-9][A-Za-z0-9_]*")

_FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)


def folded(name: str) -> str:
    """Return a name in the form in which SQLite compares names: only ASCII letters are folded to lower case."""
    return name.lower() if name.isascii() else name.translate(_FOLDED)


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def is_users(column: str = "name") -> str:
    """Return the SQL condition that a column has the name of a user's object, not of SQLite's or a node's."""
    return f"{column} NOT LIKE 'sqlite~_%' ESCAPE '~' AND {column} NOT LIKE 'bedrockish~_%' ESCAPE '~'"


def plain_name(name: str) -> str:
    """Return a name of ASCII letters, digits and _ that does not begin with _; a name of this form is unchanged.

    Different names stay different: a name that is rewritten gets the prefix ``x_``, and so does a name that already
    begins with ``x_``.
    """
    if _PLAIN.fullmatch(name):
        return name
    return "x_" + "".join(one if one.isalnum() and one.isascii() else f"_{ord(one):x}_" for one in name)
