"""Names of tables and columns: as SQLite compares them, and in the characters that every reader of Parquet allows."""

import re
from string import ascii_lowercase, ascii_uppercase

_PLAIN = re.compile(r"(?!x_)[A-Za-z0-9][A-Za-z0-9_]*")

_FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)


def folded(name: str) -> str:
    """Return a name in the form in which SQLite compares names: only ASCII letters are folded to lower case."""
    return name.lower() if name.isascii() else name.translate(_FOLDED)


def plain_name(name: str) -> str:
    """Return a name of ASCII letters, digits and _ that does not begin with _; a name of this form is unchanged.

    Different names stay different: a name that is rewritten gets the prefix ``x_``, and so does a name that already
    begins with ``x_``.
    """
    if _PLAIN.fullmatch(name):
        return name
    return "x_" + "".join(one if one.isalnum() and one.isascii() else f"_{ord(one):x}_" for one in name)
